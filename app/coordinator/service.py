"""What every request shares: settings, database, doorkeeper, supervisor, the audit key."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from app.coordinator import audit
from app.coordinator.db import EventRow, now, writing_session
from app.coordinator.exporter import Exporter
from app.coordinator.kept import KeptAnswers
from app.coordinator.newest import Newest
from app.coordinator.probe import Probe
from app.coordinator.supervisor import Supervisor
from app.coordinator.tokens import Doorkeeper, Principal
from app.settings import Settings


@dataclass(frozen=True)
class Service:
    """The running coordinator."""

    settings: Settings
    engine: Engine
    doorkeeper: Doorkeeper
    supervisor: Supervisor
    key: bytes  # of the audit chain
    kept: KeptAnswers
    newest: Newest
    probe: Probe
    exporter: Exporter

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that only reads."""
        with Session(self.engine) as session:
            yield session

    @contextmanager
    def changing(self, who: Principal, action: str, subject: str, **detail: Any) -> Iterator[Session]:
        """A transaction with its entry in the audit trail: both are kept, or neither."""
        with writing_session(self.engine) as session:
            yield session
            audit.record(session, self.key, who.name, action, subject, **detail)


def tell(session: Session, kind: str, text: str, run: str | None = None, site: str | None = None) -> None:
    """An event, as part of the transaction."""
    session.add(EventRow(at=now(), kind=kind, text=text, run=run, site=site))
