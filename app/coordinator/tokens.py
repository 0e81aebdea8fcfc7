"""Bearer tokens → who is calling; secrets are kept as digests, and guessing is slowed down."""

import hashlib
import hmac
import logging
import secrets
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path

from sqlalchemy import Engine, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.coordinator import audit
from app.coordinator.db import TokenRow, now, writing_session
from app.coordinator.problems import Refused
from app.schemas.access import Token
from app.schemas.shape import Role
from mammofed.errors import BadSetting
from mammofed.files import write_atomically

log = logging.getLogger(__name__)
REMEMBERED = 5.0  # seconds for which a token is not looked up again
FAILURES = 10  # wrong secrets for one token from one address, in a window, before it has to wait
WINDOW = 60.0  # seconds
ENROLMENT = timedelta(days=7)
NOT_VALID = {  # by whether a one-time token was needed
    False: "this token is not valid: it is unknown, revoked or meant for enrolment",
    True: "this one-time token is not valid: it is unknown or used",
}


@dataclass(frozen=True)
class Principal:
    """Who is calling, and what they may do."""

    token: str
    name: str
    role: Role
    site: str | None
    expires_at: datetime


def new_token(
    session: Session, name: str, role: Role, site: str | None, life: timedelta, one_time: bool = False
) -> tuple[TokenRow, str]:
    """A token's row and its secret, which is not kept."""
    if (role == "site") != (site is not None):
        raise BadSetting(
            f"role {role!r} with site {site!r}: a site operator's token names its site, no other does"
        )
    number = secrets.token_hex(6)
    secret = f"mf_{number}_{secrets.token_urlsafe(32)}"
    made = now()
    row = TokenRow(
        id=number,
        name=name,
        role=role,
        site=site,
        digest=digest(secret),
        one_time=one_time,
        created_at=made,
        expires_at=made + life,
    )
    session.add(row)
    return row, secret


def digest(secret: str) -> str:
    """What is kept of a secret: 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def listed(row: TokenRow) -> Token:
    """A token as it may be shown."""
    return Token.model_validate(row, from_attributes=True)


class Doorkeeper:
    """Looks tokens up, remembers them for a few seconds, and makes guessers wait."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.known: dict[str, tuple[Principal, float]] = {}
        self.failures: dict[tuple[str, str], list[float]] = {}
        self.lock = threading.Lock()

    def admit(self, secret: str, address: str) -> Principal:
        """The caller, or 401; 429 for an address that keeps trying wrong secrets for a token."""
        key, moment = digest(secret), time.monotonic()
        principal, until = self.known.get(key, (None, 0.0))
        if principal is None or until < moment:
            principal = self.look_up(secret, address)
            self.known[key] = principal, moment + REMEMBERED
        if principal.expires_at <= now():
            raise unauthorised("this token has expired: ask for a new one")
        return principal

    def look_up(self, secret: str, address: str) -> Principal:
        """The principal of a lasting token."""
        with Session(self.engine) as session:
            row = self.proven(session, secret, address)
        if row.last_used is None or now() - row.last_used > timedelta(minutes=1):
            self.note_use(row.id)
        return Principal(row.id, row.name, row.role, row.site, row.expires_at)  # type: ignore[arg-type]

    def proven(self, session: Session, secret: str, address: str, one_time: bool = False) -> TokenRow:
        """The row of a token that lasts, or of a one-time token; the digests are compared in constant time."""
        row = session.get(TokenRow, claimed(secret), with_for_update=one_time)
        whose = row.id if row else "unknown"
        self.slow_down(whose, address)
        right = hmac.compare_digest(row.digest if row else digest(""), digest(secret))
        if row is None or not right or row.revoked_at or row.one_time != one_time:
            self.remember_failure(whose, address)
            raise unauthorised(NOT_VALID[one_time])
        return row

    def note_use(self, token: str) -> None:
        """Keep when the token was used; on a disk that takes no more, its holder is let in all the same."""
        try:
            with writing_session(self.engine) as session:
                session.get_one(TokenRow, token).last_used = now()
        except OperationalError as error:
            log.warning("a token's last use cannot be written down: %s", error.orig)

    def slow_down(self, token: str, address: str) -> None:
        """429 where this address has tried too many wrong secrets for this token."""
        with self.lock:
            recent = [at for at in self.failures.get((address, token), []) if at > time.monotonic() - WINDOW]
        if len(recent) >= FAILURES:
            wait = max(1, round(recent[0] + WINDOW - time.monotonic()))
            raise Refused(
                HTTPStatus.TOO_MANY_REQUESTS, f"too many wrong tokens: wait {wait} s", Retry_After=str(wait)
            )

    def remember_failure(self, token: str, address: str) -> None:
        """Count a wrong secret; all tokens that do not exist count as one."""
        horizon = time.monotonic() - WINDOW
        with self.lock:
            self.failures = {who: times for who, times in self.failures.items() if times[-1] > horizon}
            self.failures.setdefault((address, token), []).append(time.monotonic())

    def forget(self) -> None:
        """Look every token up again: one was revoked."""
        self.known.clear()


def claimed(secret: str) -> str:
    """The id of the token that a secret claims to be of."""
    words = secret.split("_", 2)
    return words[1] if len(words) == 3 else ""


def unauthorised(why: str) -> Refused:
    """401, with the way to sign in."""
    return Refused(HTTPStatus.UNAUTHORIZED, why, WWW_Authenticate='Bearer realm="mammofed"')


def admin_token(engine: Engine, home: Path, key: bytes) -> Path | None:
    """Where no coordinator can sign in, an admin token in a file for its owner alone; its path, or None."""
    path = home / "admin.token"
    valid = select(TokenRow.id).where(TokenRow.revoked_at.is_(None), TokenRow.expires_at > now())
    with writing_session(engine) as session:
        if session.scalars(valid.where(TokenRow.role == "coordinator").limit(1)).first() is not None:
            return None
        row, secret = new_token(session, "admin", "coordinator", None, timedelta(days=365))
        if audit.hold(session).entries == 0:
            audit.begin(session, key)
        audit.record(session, key, "start", "token.create", row.name, role=row.role, site=row.site)
        write_atomically(path, f"{secret}\n".encode(), mode=0o600)
    return path
