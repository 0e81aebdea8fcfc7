"""Database and home folder → why nothing can be written to them, looked at once in a while."""

import shutil
import threading
import time
from pathlib import Path

from sqlalchemy import Engine, update
from sqlalchemy.exc import SQLAlchemyError

from app.coordinator.db import AuditHead, writing_session

AGAIN = 2.0  # seconds; whoever asks, signed in or not, cannot make it write more often
ROOM = 2**20  # bytes below which a disk counts as full: one round of the smallest network needs more


class Probe:
    """Tries to write, and remembers for a while how it went."""

    def __init__(self, engine: Engine, home: Path) -> None:
        self.engine, self.home = engine, home
        self.lock = threading.Lock()
        self.found: tuple[str, ...] = ()
        self.until = 0.0

    def problems(self) -> tuple[str, ...]:
        """What keeps the service from writing, in words that tell nothing of the studies."""
        with self.lock:
            if time.monotonic() >= self.until:
                self.found = tuple(why for why in (self.database(), self.disk()) if why)
                self.until = time.monotonic() + AGAIN
            return self.found

    def database(self) -> str | None:
        """Write a row as it is: it goes through the log and to the disk like any other."""
        try:
            with writing_session(self.engine) as session:
                session.execute(update(AuditHead).values(entries=AuditHead.entries))
        except SQLAlchemyError:
            return "the database cannot be written to"
        return None

    def disk(self) -> str | None:
        """Look at the room that is left."""
        try:
            free = shutil.disk_usage(self.home).free
        except OSError:
            return "the home folder cannot be read"
        return "the home folder's disk is full" if free < ROOM else None
