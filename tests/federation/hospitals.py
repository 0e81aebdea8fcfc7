"""Whole federations on loopback for tests: kits, an engine server, sites as processes, a ledger in a folder."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.coordinator.engines.nvflare import Admin, NVFlare
from app.federation.conduct import Conductor
from app.federation.link import EngineDown, Link
from app.federation.processes import client_command, server_command, start, stop
from app.federation.provision import Federation, create
from app.federation.terms import Terms
from app.processes import free_port
from app.site.data import SiteSettings, write_settings
from app.site.home import HOME
from app.site.kit import unpack_kit
from fl_core.checkpoint import FolderLedger
from fl_core.family import ALGORITHMS
from fl_core.plan import Plan
from fl_core.schedule import Schedule

ROWS = [name for name, row in ALGORITHMS.items() if not row.pooled]


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a condition, with a deadline."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        time.sleep(0.1)


def small_plan(algorithm: str, **changes: Any) -> Plan:
    """A plan that trains in seconds."""
    settings = {"rounds": 3, "local_steps": 2, "batch": 8, "threads": 1, "device": "cpu", **changes}
    return Plan(algorithm, "densenet-small", Schedule(0.05, warmup=2), **settings)


@dataclass(frozen=True)
class TestLedger(FolderLedger):
    """Rounds in a folder, with orders from the test and its events kept."""

    __test__ = False
    orders: list[str] = field(default_factory=lambda: ["train"])  # the last one counts
    here: set[str] | None = None
    events: list[tuple[str, str, str | None]] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)
    told: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def order(self) -> str:
        """What the run is to do."""
        return self.orders[-1]

    def present(self) -> frozenset[str] | None:
        """Who takes part."""
        return None if self.here is None else frozenset(self.here)

    def describe(self, said: Mapping[str, Any]) -> None:
        """Keep it."""
        self.said.update(said)

    def event(self, kind: str, text: str, site: str | None = None) -> None:
        """Keep it."""
        self.events.append((kind, text, site))

    def progress(self, site: str, told: Mapping[str, Any]) -> None:
        """Keep it."""
        self.told.append((site, told))


def finish(conductor: Conductor, seconds: float) -> None:
    """Train to the last round, with a deadline."""
    assert isinstance(conductor.ledger, TestLedger)
    thread = threading.Thread(target=conductor.run)
    thread.start()
    thread.join(seconds)
    is_done = not thread.is_alive()
    conductor.ledger.orders.append("stop")
    thread.join(60)
    assert is_done, f"the run did not end within {seconds} s: {conductor.ledger.events}"


@dataclass(frozen=True)
class OneSegment:
    """The engine's job, used for several runs one after the other."""

    sites: tuple[str, ...]
    link: Link
    folder: Path  # of the models on offer

    def connected(self) -> frozenset[str]:
        """All of them."""
        return frozenset(self.sites)

    @contextmanager
    def segment(self, sites: tuple[str, ...]) -> Iterator[Link]:
        """The one there is."""
        yield self.link


class Hospitals:
    """A provisioned federation whose server and sites run as processes."""

    def __init__(self, folder: Path, data: Mapping[str, str], **settings: Any) -> None:
        self.folder, self.sites = folder, tuple(data)
        create(folder / "federation", Federation("trial", "localhost", free_port(), self.sites))
        for site, words in data.items():
            unpack_kit(folder / "federation" / "kits" / f"{site}.zip", folder / site)
            write_settings(folder / site, SiteSettings(site, words, **settings))
        self.environment: dict[str, str] = {"OMP_NUM_THREADS": "1"}
        self.site_environment: dict[str, str] = {}
        self.admin = Admin(folder / "federation")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_all(self) -> None:
        """Server and sites."""
        for name in ("server", *self.sites):
            self.start(name)

    def start(self, name: str) -> None:
        """One of them."""
        if name == "server":
            command, environment = server_command(self.folder / "federation" / "server"), {}
        else:
            command = client_command(self.folder / name / "kit", name)
            environment = {HOME: str(self.folder / name), **self.site_environment}
        log = self.folder / f"{name}.log"
        self.processes[name] = start(command, log, {**self.environment, **environment})

    def stop_all(self) -> None:
        """End what was started."""
        self.admin.close()
        for process in self.processes.values():
            stop(process, patience=1.0)

    def kill(self, name: str) -> None:
        """-9 to the process and to all in its session."""
        os.killpg(self.processes[name].pid, 9)
        self.processes[name].wait()

    def connected(self) -> set[str]:
        """Sites that the server knows to be there."""
        try:
            return set(self.admin.connected())
        except EngineDown:
            return set()

    def engine(self, run: str, folder: Path) -> NVFlare:
        """The engine of a run."""
        return NVFlare(self.admin, run, folder)

    def conductor(self, terms: Terms, folder: Path) -> Conductor:
        """A run with its ledger in a folder."""
        ledger = TestLedger(folder / "ledger")
        return Conductor(terms, ledger, self.engine(terms.run, folder / "work"), folder / "work")
