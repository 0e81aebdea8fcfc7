"""Who did what → a chain of sealed entries that cannot be changed, reordered or cut short unseen.

Each entry's seal is an HMAC over the head before it and the entry itself, with a key that lies outside the
database; the head is a seal over the last entry's. So nobody without the key can make the head of a shorter chain,
and an entry that is appended behind a forged head does not fit the chain.
"""

import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from app.coordinator.db import AuditHead, AuditRow, now
from app.schemas.access import AuditCheck
from mammofed.errors import BadSetting
from mammofed.files import write_atomically

KEY_BYTES = 32
KEY_FILE = "audit.key"


def audit_key(home: Path) -> bytes:
    """The key that seals the chain, as it lies in the home folder."""
    path = home / KEY_FILE
    try:
        key = path.read_bytes()
    except OSError as error:
        raise BadSetting(f"{path} cannot be read ({error.strerror}): put the right key back") from error
    if len(key) < KEY_BYTES:
        raise BadSetting(f"{path} holds {len(key)} bytes, {KEY_BYTES} are needed: put the right key back")
    return key


def first_key(engine: Engine, home: Path) -> bytes:
    """The key; made at the first start for its owner alone, and never anew once entries are sealed with one."""
    path = home / KEY_FILE
    if not path.exists():
        with Session(engine) as session:
            if session.scalars(select(AuditRow.id).limit(1)).first() is not None:
                raise BadSetting(f"{path} is missing, and the audit trail is sealed with it: put it back")
        write_atomically(path, os.urandom(KEY_BYTES), mode=0o600)
    return audit_key(home)


def seal(key: bytes, before: str, number: int, entry: tuple[str, ...]) -> str:
    """The seal of an entry behind another."""
    text = json.dumps([before, number, *entry], separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def head_seal(key: bytes, last: str, entries: int) -> str:
    """The seal of a head: that the chain ends with this entry."""
    return seal(key, last, entries, ("head",))


def hold(session: Session) -> AuditHead:
    """The end of the chain, held for this transaction: what is to be counted without gaps is counted behind it."""
    return session.get_one(AuditHead, 0, with_for_update=True)


def begin(session: Session, key: bytes) -> None:
    """Seal the head of the chain that is still empty; its first entry must come in the same transaction."""
    hold(session).hash = head_seal(key, "", 0)


def record(session: Session, key: bytes, actor: str, action: str, subject: str, **detail: Any) -> None:
    """Append an entry as part of the session's transaction."""
    head = hold(session)
    entry = (now().isoformat(), actor, action, subject, json.dumps(detail, sort_keys=True))
    number = head.entries + 1
    sealed = seal(key, head.hash, number, entry)
    at, actor, action, subject, text = entry
    session.add(AuditRow(id=number, at=at, actor=actor, action=action, subject=subject, detail=text, hash=sealed))
    head.entries, head.hash = number, head_seal(key, sealed, number)


def verify(session: Session, key: bytes) -> AuditCheck:
    """Walk the chain from its first entry to its head."""
    head = session.get_one(AuditHead, 0)
    before, number = head_seal(key, "", 0), 0
    for row in session.scalars(select(AuditRow).order_by(AuditRow.id).execution_options(yield_per=1000)):
        number += 1
        if row.id != number:
            return broken(number, f"entry {number} is missing")
        sealed = seal(key, before, number, (row.at, row.actor, row.action, row.subject, row.detail))
        if not hmac.compare_digest(sealed, row.hash):
            return broken(number, f"entry {number} or the end before it was changed, or sealed with another key")
        before = head_seal(key, sealed, number)
    if number == 0:
        return broken(1, "the chain is empty, and the first start writes an entry")
    if head.entries != number or not hmac.compare_digest(head.hash, before):
        return broken(number + 1, f"the chain ends after entry {number}, and its head is not the one of this end")
    return AuditCheck(intact=True, entries=number, broken_at=None, why=None)


def broken(number: int, why: str) -> AuditCheck:
    """A chain that does not hold."""
    return AuditCheck(intact=False, entries=number, broken_at=number, why=why)
