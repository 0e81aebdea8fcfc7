"""An engine without a network: sites in this process, called over a socket; they can be silent, slow or lie."""

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from app.federation.collect import carry_out
from app.federation.conduct import Conductor
from app.federation.desk import Desk
from app.federation.link import EngineDown, Link, SiteSilent, serve
from app.federation.terms import Terms
from app.site.data import SiteSettings
from app.site.work import SiteWork
from app.sources import DataChoice
from fl_core.checkpoint import FolderLedger, read_manifest
from fl_core.data import SiteData
from fl_core.evaluate import report
from fl_core.models import build_model
from fl_core.plan import Plan
from fl_core.rounds import Federation, Moment, run_rounds
from fl_core.wire import pack
from tests.federation.hospitals import TestLedger, small_plan, until

SITES = ("hospital-1", "hospital-2", "hospital-3")
FIRST, SECOND, THIRD = SITES
CHOICE = DataChoice(sites=3, patches=30, image_size=32)
SHORT = partial(small_plan, rounds=2, local_steps=2, batch=4)
Lie = Callable[[str, str, bytes], bytes]  # (order, text, honest answer) → what is answered instead


class Neighbours:
    """Sites in this process; one that is restarted keeps its folder and forgets the rest."""

    def __init__(self, folder: Path, data: Mapping[str, str], share_scores: bool = True, floor: int = 1) -> None:
        self.folder = folder
        self.desk = Desk(folder / "work" / "offers")
        self.settings = {
            name: SiteSettings(name, words, share_scores=share_scores, floor=floor) for name, words in data.items()
        }
        self.works = {name: self.started(name) for name in data}
        self.online = set(data)
        self.lies: dict[str, Lie] = {}
        self.heard: list[tuple[str, str]] = []  # (site, order)
        self.segments: list[tuple[str, ...]] = []
        self.before: Callable[[str, str], None] = lambda site, order: None  # a call

    def started(self, name: str) -> SiteWork:
        """The site's process, begun anew."""
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        return SiteWork(self.folder / name, self.settings[name], self.fetch, partial(self.desk.meet, name))

    def fetch(self, digest: str, offset: int, size: int) -> list[memoryview]:
        """A part of the model on offer."""
        return [self.desk.fetch(digest, offset, size)]

    def restart(self, name: str) -> None:
        """Kill it and start it again."""
        self.works[name] = self.started(name)

    def meet_by(self, meet: Callable[..., Any]) -> None:
        """Have all sites meet in another way, from their next start on, which is now."""
        self.desk.meet = meet  # type: ignore[method-assign]
        for name in self.works:
            self.restart(name)

    def lose_disk(self, name: str) -> None:
        """All that the site kept is gone."""
        shutil.rmtree(self.folder / name / "runs")

    def connected(self) -> frozenset[str]:
        """Who is there."""
        return frozenset(self.online)

    @contextmanager
    def segment(self, sites: tuple[str, ...]) -> Iterator[Link]:
        """A socket pair with the sites behind it."""
        if not set(sites) <= self.online:
            raise EngineDown("a site has gone")
        self.segments.append(sites)
        ours, theirs = socket.socketpair()
        reached = set(sites)

        def call(site: str, order: str, text: str, timeout: float) -> bytes:
            if not site:
                return carry_out(self.desk, call, lambda *_: (), order, json.loads(text))
            self.heard.append((site, order))
            self.before(site, order)
            if site not in self.online:
                reached.discard(site)  # back, it is not in this segment's job any more
            if site not in reached:
                raise SiteSilent(f"{site} is gone")
            answer = bytes(self.works[site].take(order, text))
            lie = self.lies.get(site)
            return lie(order, text, answer) if lie else answer

        server = threading.Thread(target=serve, args=(theirs, call))
        server.start()
        link = Link(ours)
        try:
            yield link
        finally:
            link.close()
            server.join()
            theirs.close()

    def conductor(self, terms: Terms) -> Conductor:
        """A run with its ledger in a folder."""
        return Conductor(terms, TestLedger(self.folder / "ledger"), self, self.folder / "work")


def terms_of(plan: Plan, **changes: Any) -> Terms:
    """Of a run that goes on without one of three."""
    settings = {"quorum": 2, "deadline": 60.0, "silence": 0.1, "resamples": 100, **changes}
    return Terms("run-1", plan, SITES, **settings)


def on_one_machine(
    plan: Plan, data: tuple[SiteData, ...], present: Callable[[], frozenset[str] | None] = lambda: None
) -> Moment:
    """The same run without sites that must be called."""
    federation = Federation(plan, partial(build_model, plan.model, 1, 5, plan.seed), data)
    *_, last = run_rounds(federation, partial(report, resamples=100, seed=plan.seed), present=present)
    return last


def ledger_of(conductor: Conductor) -> TestLedger:
    """Its events and rounds."""
    assert isinstance(conductor.ledger, TestLedger)
    return conductor.ledger


def trained(neighbours: Neighbours, terms: Terms) -> TestLedger:
    """A run to its end."""
    conductor = neighbours.conductor(terms)
    conductor.run()
    return ledger_of(conductor)


def same(ledger: TestLedger, moment: Moment) -> bool:
    """Whether the bits of the last round are those."""
    last = ledger.latest()
    return last is not None and pack(last.server) == pack(moment.server)


def kinds(ledger: TestLedger, site: str) -> set[str]:
    """What happened to a site."""
    return {kind for kind, _, about in ledger.events if about == site}


def read(ledger: FolderLedger, number: int) -> Any:
    """A round as the ledger keeps it."""
    return type("Round", (), read_manifest(ledger.folder / "rounds" / f"{number:06d}.json"))


def wait_for_event(ledger: TestLedger, kind: str) -> None:
    """Wait for it, with a deadline."""
    until(lambda: any(found == kind for found, _, _ in ledger.events), 30, f"an event {kind!r}")
