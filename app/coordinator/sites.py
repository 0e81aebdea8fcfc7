"""Requests about sites → rows changed and answers shaped."""

from datetime import timedelta
from http import HTTPStatus
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.coordinator import audit
from app.coordinator.db import RunRow, RunSiteRow, SiteRow, now
from app.coordinator.problems import Refused, not_found
from app.coordinator.service import Service, tell
from app.coordinator.tokens import ENROLMENT, Principal, new_token
from app.federation.provision import TAKEN, WARN_DAYS, days_left, expiries
from app.schemas.access import Certificate, Enrolment, Site
from app.schemas.shape import SiteCondition

SiteAction = Literal["pause", "resume", "withdraw"]
CONDITIONS: dict[SiteAction, SiteCondition] = {"pause": "paused", "resume": "active", "withdraw": "withdrawn"}
ONLINE = timedelta(seconds=30)  # since the last sign of life
UNFINISHED = ("draft", "running", "paused")


def list_sites(session: Session, who: Principal) -> tuple[Site, ...]:
    """Enrolled sites; an operator sees the own one alone."""
    rows = session.scalars(select(SiteRow).order_by(SiteRow.name))
    return tuple(shaped(session, row) for row in rows if who.site in (None, row.name))


def shaped(session: Session, row: SiteRow) -> Site:
    """A site as it is answered."""
    of = select(RunSiteRow.run).join(RunRow, RunRow.id == RunSiteRow.run)
    runs = session.scalars(of.where(RunSiteRow.site == row.name, RunRow.state.in_(UNFINISHED)))
    here = of.where(RunSiteRow.site == row.name, RunRow.settings["engine"].as_string() == "local").limit(1)
    return Site(
        name=row.name,
        condition=row.condition,
        online=None if row.last_seen is None else now() - row.last_seen < ONLINE,
        last_seen=row.last_seen,
        certificate_expires=row.certificate_expires,
        simulated=row.last_seen is None and session.scalar(here) is not None,
        enrolled_at=row.enrolled_at,
        runs=tuple(runs),
    )


def list_certificates(service: Service, who: Principal) -> tuple[Certificate, ...]:
    """The authority's, the server's and the sites'; an operator sees the own site's alone beside the first two."""
    folder = service.settings.federation
    ends = expiries(folder.expanduser()) if folder is not None else {}
    return tuple(
        Certificate(name=name, expires=end, days_left=days_left(end), ends_soon=days_left(end) < WARN_DAYS)
        for name, end in ends.items()
        if who.site is None or name in (who.site, *TAKEN)
    )


def enrol(service: Service, who: Principal, name: str) -> Enrolment:
    """A new site, or one that had withdrawn; with a one-time token for its operator."""
    with service.changing(who, "site.enrol", name) as session:
        audit.hold(session)  # of two who enrol the same site, one comes second
        row = session.get(SiteRow, name, with_for_update=True)
        if row is not None and row.condition != "withdrawn":
            raise Refused(HTTPStatus.CONFLICT, f"site {name!r} is enrolled already")
        if row is None:
            row = SiteRow(name=name, condition="active", enrolled_at=now())
            session.add(row)
        row.condition = "active"
        token, secret = new_token(session, f"enrolment of {name}", "site", name, ENROLMENT, one_time=True)
        session.flush()
        tell(session, "enrolled", f"{name} enrolled by {who.name}", site=name)
        return Enrolment(site=shaped(session, row), token=secret, expires_at=token.expires_at)


def act(service: Service, who: Principal, name: str, action: SiteAction) -> Site:
    """Pause, resume or withdraw; a withdrawn site comes back only by enrolling again."""
    with service.changing(who, f"site.{action}", name) as session:
        row = session.get(SiteRow, name, with_for_update=True)
        if row is None:
            raise not_found(f"site {name!r}")
        if row.condition == "withdrawn":
            raise Refused(HTTPStatus.CONFLICT, f"site {name!r} has withdrawn: enrol it again first", ())
        row.condition = CONDITIONS[action]
        tell(session, row.condition, f"{name} is {row.condition}, by {who.name}", site=name)
        return shaped(session, row)
