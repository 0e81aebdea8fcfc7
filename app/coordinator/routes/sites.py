"""`/sites`, `/certificates`: enrol, look at, pause, resume, withdraw."""

from http import HTTPStatus

from fastapi import APIRouter

from app.coordinator import sites
from app.coordinator.deps import Anyone, Lead, OwnSite, TheService
from app.schemas.access import Certificate, Enrolment, NewSite, Site

router = APIRouter(tags=["sites"])


@router.get("/sites")
def list_sites(service: TheService, who: Anyone) -> tuple[Site, ...]:
    """Enrolled sites; a site's operator sees that site alone."""
    with service.reading() as session:
        return sites.list_sites(session, who)


@router.get("/certificates")
def list_certificates(service: TheService, who: Anyone) -> tuple[Certificate, ...]:
    """When the federation's certificates end: the authority's, the server's and the sites'."""
    return sites.list_certificates(service, who)


@router.post("/sites", status_code=HTTPStatus.CREATED)
def enrol(service: TheService, who: Lead, wanted: NewSite) -> Enrolment:
    """Enrol a site; the answer holds a one-time token for its operator, shown once."""
    return sites.enrol(service, who, wanted.name)


@router.post("/sites/{name}/{action}")
def act(service: TheService, who: OwnSite, name: str, action: sites.SiteAction) -> Site:
    """Pause, resume or withdraw a site: the coordinator any, an operator the own one."""
    return sites.act(service, who, name, action)
