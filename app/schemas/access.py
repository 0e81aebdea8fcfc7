"""Who takes part and who may what: sites, certificates, tokens, the audit trail."""

from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from app.schemas.shape import Answer, Request, Role, SiteCondition, SiteName


class Site(Answer):
    """An enrolled site."""

    name: str
    condition: SiteCondition
    online: bool | None  # null: it trains in the coordinator's own worker, or has not been seen yet
    last_seen: datetime | None
    certificate_expires: datetime | None
    simulated: bool  # it has trained in the coordinator's own worker, and never connected
    enrolled_at: datetime
    runs: tuple[str, ...]  # ids of the unfinished runs that it is in


class Certificate(Answer):
    """A certificate of the federation, and when it ends."""

    name: str  # `authority`, `server`, or a site
    expires: datetime
    days_left: int
    ends_soon: bool  # within the days in which it is to be renewed


class NewSite(Request):
    """A site to enrol."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra={"examples": [{"name": "hospital-9"}]}
    )

    name: SiteName


class Enrolment(Answer):
    """The one-time token with which the site's operator gets a token of their own; it is shown once."""

    site: Site
    token: str
    expires_at: datetime


class NewToken(Request):
    """A token to create."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"name": "Ward B", "role": "viewer", "days": 30},
                {"name": "operator of hospital-1", "role": "site", "site": "hospital-1"},
            ]
        },
    )

    name: str = Field(min_length=1, max_length=80)
    role: Role
    site: SiteName | None = None
    days: float = Field(90.0, gt=0, le=3650)


class Exchange(Request):
    """A one-time token to exchange for a lasting one."""

    token: str = Field(max_length=200, examples=["mf_0123456789ab_as-it-was-shown-once"])


class Token(Answer):
    """A token as it is listed: never the secret."""

    id: str
    name: str
    role: Role
    site: str | None
    one_time: bool
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    last_used: datetime | None


class Secret(Answer):
    """A new token with its secret, shown once."""

    token: Token
    secret: str


class Me(Answer):
    """Who the caller is."""

    name: str
    role: Role
    site: str | None
    expires_at: datetime


class AuditEntry(Answer):
    """One link of the audit chain."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]
    hash: str


class AuditCheck(Answer):
    """Whether the chain holds."""

    intact: bool
    entries: int
    broken_at: int | None
    why: str | None
