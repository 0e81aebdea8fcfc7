"""What a route needs of a request: the service, and a caller whose role may do what the route does."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.coordinator.problems import Refused, not_found
from app.coordinator.service import Service
from app.coordinator.tokens import Principal, unauthorised
from app.schemas.shape import Problem, Role

bearer = HTTPBearer(auto_error=False, description="a token made by `mammofed token create`")
LARGEST_ID = 2**53  # JSON readers count no further
EVERYONE: tuple[Role, ...] = ("coordinator", "site", "viewer")
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "content": {"application/problem+json": {}}}
    for status in (400, 401, 403, 404, 405, 406, 409, 413, 422, 429, 503, 507)
}


def service_of(request: Request) -> Service:
    """The running coordinator."""
    found: Service = request.app.state.service
    return found


def caller(
    request: Request,
    given: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
) -> Principal:
    """Who is calling, by the bearer token."""
    if given is None:
        raise unauthorised("sign in: send a token as `Authorization: Bearer ...`")
    address = request.client.host if request.client else "unknown"
    return service_of(request).doorkeeper.admit(given.credentials, address)


def one_of(*roles: Role) -> Callable[[Principal], Principal]:
    """A caller with one of these roles, or 403."""

    def checked(who: Annotated[Principal, Depends(caller)]) -> Principal:
        if who.role not in roles:
            raise Refused(HTTPStatus.FORBIDDEN, f"this is for {' and '.join(roles)}; your token is for {who.role}")
        return who

    return checked


def own_site(name: str, who: Annotated[Principal, Depends(one_of("coordinator", "site"))]) -> Principal:
    """The coordinator, or the operator of the site in the path; another site is as good as none."""
    if who.role == "site" and who.site != name:
        raise not_found(f"site {name!r}")
    return who


TheService = Annotated[Service, Depends(service_of)]
Anyone = Annotated[Principal, Depends(one_of(*EVERYONE))]
Lead = Annotated[Principal, Depends(one_of("coordinator"))]
OwnSite = Annotated[Principal, Depends(own_site)]
Limit = Annotated[int, Query(ge=1, le=500)]
After = Annotated[int, Query(ge=0, le=LARGEST_ID)]
