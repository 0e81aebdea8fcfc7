"""A federation's folder → its engine server kept running, and its sites as the database knows them."""

import logging
import threading
from datetime import datetime
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.coordinator.db import SiteRow, now, writing_session
from app.coordinator.engines.nvflare import Admin
from app.coordinator.service import tell
from app.federation.link import EngineDown
from app.federation.processes import keep_alive, server_command, start
from app.federation.provision import TAKEN, WARN_DAYS, days_left, expiries

log = logging.getLogger(__name__)
LOOK = 5.0  # seconds between two looks at who is connected
READ_ANEW = 60  # looks between two looks at the certificates


class Hospitals:
    """Two threads: one keeps the engine's server alive, one takes note of sites and certificates."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder, self.engine = folder.expanduser().resolve(), engine
        self.ending = threading.Event()
        self.admin = Admin(self.folder)
        self.warned: set[str] = set()
        enrol(self.engine, expiries(self.folder), self.warned)
        works = (self.serve, self.watch)
        self.threads = [threading.Thread(target=work, name=work.__name__, daemon=True) for work in works]
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """End both, and the server; sites connect again with its next start."""
        self.ending.set()
        for thread in self.threads:
            thread.join()
        self.admin.close()

    def serve(self) -> None:
        """Keep the server running."""
        command, said = server_command(self.folder / "server"), self.folder / "server.log"
        keep_alive(lambda: start(command, said), lambda: not self.ending.is_set())

    def watch(self) -> None:
        """Look who is there, again and again."""
        looks = 0
        while not self.ending.wait(LOOK):
            looks += 1
            try:
                self.see(self.admin.connected())
                if looks % READ_ANEW == 0:
                    enrol(self.engine, expiries(self.folder), self.warned)
            except EngineDown as error:
                log.info("%s", error)
            except SQLAlchemyError as error:
                log.error("the database cannot be used: %s", error)

    def see(self, connected: frozenset[str]) -> None:
        """Take down that these sites are alive."""
        with writing_session(self.engine) as session:
            for name in connected:
                row = session.get(SiteRow, name)
                if row is not None:
                    row.last_seen = now()


def enrol(engine: Engine, ends: dict[str, datetime], warned: set[str]) -> None:
    """Every site with a kit is enrolled; ends of certificates are taken down, and warned of once."""
    with writing_session(engine) as session:
        for name, end in ends.items():
            if name not in TAKEN:
                row = session.get(SiteRow, name)
                if row is None:
                    row = SiteRow(name=name, condition="active", enrolled_at=now())
                    session.add(row)
                    tell(session, "enrolled", f"{name} has a kit of the federation", site=name)
                row.certificate_expires = end
            if days_left(end) < WARN_DAYS and name not in warned:
                warned.add(name)
                tell(session, "certificate", f"the certificate of {name} ends in {days_left(end)} days")
