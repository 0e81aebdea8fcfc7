"""An engine without a network: sites in this process, called over a socket; they can be silent, slow or lie."""

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from app.federation.collect import carry_out
from app.federation.conduct import Conductor
from app.federation.desk import Desk
from app.federation.link import EngineDown, Link, SiteSilent, serve
from app.federation.terms import Terms
from app.site.data import SiteSettings
from app.site.work import SiteWork
from tests.federation.hospitals import TestLedger

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
