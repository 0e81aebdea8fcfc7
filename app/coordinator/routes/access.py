"""`/me`, `/tokens`, `/audit`: who may do what, and who did."""

import json
from datetime import timedelta
from http import HTTPStatus

from fastapi import APIRouter, Request
from sqlalchemy import func, select

from app.coordinator import audit
from app.coordinator.db import AuditRow, TokenRow, now
from app.coordinator.deps import After, Anyone, Lead, Limit, TheService
from app.coordinator.problems import not_found
from app.coordinator.service import Service
from app.coordinator.tokens import Principal, claimed, listed, new_token, unauthorised
from app.schemas.access import AuditCheck, AuditEntry, Exchange, Me, NewToken, Secret, Token
from app.schemas.shape import Page

router = APIRouter(tags=["access"])
OPERATOR = timedelta(days=365)


@router.get("/me")
def me(who: Anyone) -> Me:
    """Who the token belongs to."""
    return Me(name=who.name, role=who.role, site=who.site, expires_at=who.expires_at)


@router.get("/tokens")
def tokens(service: TheService, who: Lead) -> tuple[Token, ...]:
    """All tokens, without their secrets."""
    with service.reading() as session:
        return tuple(listed(row) for row in session.scalars(select(TokenRow).order_by(TokenRow.created_at)))


@router.post("/tokens", status_code=HTTPStatus.CREATED)
def create(service: TheService, who: Lead, wanted: NewToken) -> Secret:
    """A new token; its secret is in this answer and nowhere else."""
    with service.changing(who, "token.create", wanted.name, role=wanted.role, site=wanted.site) as session:
        row, secret = new_token(session, wanted.name, wanted.role, wanted.site, timedelta(days=wanted.days))
        session.flush()
        return Secret(token=listed(row), secret=secret)


@router.delete("/tokens/{token}")
def revoke(service: TheService, who: Lead, token: str) -> Token:
    """End a token at once."""
    with service.changing(who, "token.revoke", token) as session:
        row = session.get(TokenRow, token, with_for_update=True)
        if row is None:
            raise not_found(f"token {token!r}")
        row.revoked_at = row.revoked_at or now()
        answer = listed(row)
    service.doorkeeper.forget()
    return answer


@router.post("/tokens/exchange", status_code=HTTPStatus.CREATED)
def exchange(service: TheService, request: Request, given: Exchange) -> Secret:
    """A lasting token for the one-time token of an enrolment; needs no other sign-in."""
    address = request.client.host if request.client else "unknown"
    operator = Principal("", "enrolment", "site", None, now())
    with service.changing(operator, "token.exchange", claimed(given.token)) as session:
        row = service.doorkeeper.proven(session, given.token, address, one_time=True)
        if row.expires_at <= now():
            raise unauthorised("this one-time token has expired: have the site enrolled again")
        row.revoked_at = row.last_used = now()
        made, secret = new_token(session, f"operator of {row.site}", "site", row.site, OPERATOR)
        session.flush()
        return Secret(token=listed(made), secret=secret)


@router.get("/audit")
def entries(
    service: TheService,
    who: Lead,
    after: After | None = None,
    limit: Limit = 50,
    actor: str | None = None,
    action: str | None = None,
    subject: str | None = None,
) -> Page[AuditEntry]:
    """Who did what and when, the newest first."""
    wanted = {AuditRow.actor: actor, AuditRow.action: action, AuditRow.subject: subject}
    seen = [column == value for column, value in wanted.items() if value is not None]
    return audit_page(service, seen, after, limit)


def audit_page(service: Service, seen: list, after: int | None, limit: int) -> Page[AuditEntry]:  # type: ignore[type-arg]
    """A page of the chain."""
    with service.reading() as session:
        chosen = select(AuditRow).where(*seen).order_by(AuditRow.id.desc()).limit(limit + 1)
        rows = list(session.scalars(chosen if after is None else chosen.where(AuditRow.id < after)))
        total = session.scalar(select(func.count()).select_from(AuditRow).where(*seen)) or 0
    items = tuple(
        AuditEntry(
            id=row.id,
            at=row.at,
            actor=row.actor,
            action=row.action,
            subject=row.subject,
            detail=json.loads(row.detail),
            hash=row.hash,
        )
        for row in rows[:limit]
    )
    return Page(items=items, total=total, next=items[-1].id if len(rows) > limit else None)


@router.get("/audit/check")
def check(service: TheService, who: Lead) -> AuditCheck:
    """Walk the chain and say whether it holds."""
    with service.reading() as session:
        return audit.verify(session, service.key)
