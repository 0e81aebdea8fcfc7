"""Terms, a ledger and an engine → rounds committed one after the other, whatever happens to sites and engine.

The engine reaches sites in *segments* of many rounds. A segment ends when a site fell silent, when one came back,
or when the engine's job died; the next begins at the last committed round. The ledger is the truth.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import nn

from app.federation.answers import Answer, Form
from app.federation.field import Field, LeftOut
from app.federation.link import Calls, EngineDown, JobFailed, LinkLost
from app.federation.remote import (
    OPENING,
    QuorumMissed,
    SiteScores,
    check_quorum,
    evaluate_at,
    greet,
    one_round,
    settle,
)
from app.federation.scores import combined
from app.federation.standing import (
    RoundResult,
    Standing,
    Variates,
    bases_after,
    clear_variates,
    standing_after,
    standing_as_json,
    standing_of,
)
from app.federation.terms import Terms
from fl_core.checkpoint import Checkpoint
from fl_core.local import first_state, workplace
from fl_core.models import build_model
from fl_core.roles import Roles
from fl_core.rounds import Moment, difference, is_due, record_of
from fl_core.state import ServerState
from mammofed.errors import BadSetting, TrainingFailed

AGAIN = 1.0  # seconds between two looks at who is connected
LONGEST = 30.0  # seconds before a round is tried again that its sites trained in vain
ASIDE = 60.0, 3600.0  # seconds before a site whose job did not begin is tried again, the first time and at most
Result = TypeVar("Result")
Scored = tuple[dict[str, SiteScores], dict[str, LeftOut]]  # and who gave none


class Halted(TrainingFailed):
    """The run is not to go on."""


class Ledger(Protocol):
    """Where rounds are committed, and where orders come from."""

    def latest(self) -> Checkpoint | None:
        """The last committed round."""

    def committed(self) -> int:
        """Its number, as far as can be told without reading it."""

    def commit(self, checkpoint: Checkpoint, moment: Moment) -> None:
        """Keep a round as a whole, or raise and keep nothing of it."""

    def order(self) -> str:
        """`train`, or anything else to stop after the open round; `stop`: at once."""

    def present(self) -> frozenset[str] | None:
        """Sites that are neither paused nor withdrawn at the coordinator; None: all."""

    def describe(self, said: Mapping[str, Answer]) -> None:
        """What sites said of their data."""

    def event(self, kind: str, text: str, site: str | None = None) -> None:
        """Tell what happened."""

    def progress(self, site: str, told: Mapping[str, Any]) -> None:
        """How far a site is in the open round."""


class Engine(Protocol):
    """What reaches sites."""

    def connected(self) -> frozenset[str]:
        """The sites that are connected now, or EngineDown."""

    def segment(self, sites: tuple[str, ...]) -> AbstractContextManager[Calls]:
        """A way to call these sites, or EngineDown."""


@dataclass(frozen=True)
class Conductor:
    """One run over sites."""

    terms: Terms
    ledger: Ledger
    engine: Engine
    folder: Path  # for models on offer, updates on their way and the sites' variates
    aside: dict[str, "Aside"] = field(default_factory=dict)  # sites that are connected and cannot train

    def run(self) -> None:
        """Train to the last round, or until the ledger's order is another."""
        told = Told(self.ledger)
        shutil.rmtree(self.folder / "offers", ignore_errors=True)  # a power cut leaves any bytes in them
        while not self.is_over():
            try:
                sites = self.sites_at_hand()
                with self.segment(sites) as calls:
                    self.ledger.event("segment", f"training with {', '.join(sites)}")
                    told = Told(self.ledger)
                    self.train_with(calls, sites)
            except (EngineDown, LinkLost, QuorumMissed) as error:
                told.stopped_by(error)
                time.sleep(AGAIN)
            except Halted:
                return

    @contextmanager
    def segment(self, sites: tuple[str, ...]) -> Iterator[Calls]:
        """A way to call these sites; where their job does not begin, find out whose fault it is."""
        try:
            with self.engine.segment(sites) as calls:
                yield calls
        except JobFailed:
            self.set_aside(sites)
            raise

    def set_aside(self, sites: tuple[str, ...]) -> None:
        """Try a job with each site alone: one whose job does not begin would keep all others from training."""
        can_spare = len(sites) > self.terms.quorum
        failed = [site for site in sites if not self.begins(site)] if can_spare else []
        for site in failed if len(failed) < len(sites) else ():  # else it is no site's fault
            again = 2 * self.aside[site].pause if site in self.aside else ASIDE[0]
            self.aside[site] = Aside(min(again, ASIDE[1]), time.monotonic())
            self.ledger.event(
                "site-silent", f"no round with {site}: its job does not begin; see its own log", site
            )

    def begins(self, site: str) -> bool:
        """Whether a job with this site alone begins."""
        if self.ledger.order() != "train":
            raise Halted("the run is not to go on")
        try:
            with self.engine.segment((site,)):
                return True
        except JobFailed:
            return False

    def is_over(self) -> bool:
        """Whether there is nothing to do: finished, paused or stopped."""
        if self.ledger.order() != "train":
            return True
        if self.ledger.committed() < self.terms.plan.rounds:
            return False  # asked every second while sites are waited for: no state is read for it
        last = self.ledger.latest()
        return last is not None and last.server.round >= self.terms.plan.rounds

    def sites_at_hand(self) -> tuple[str, ...]:
        """The run's sites that are connected and wanted, in the order of the sums; with too few, EngineDown."""
        connected, wanted = self.engine.connected(), self.ledger.present()
        aside = {site for site, told in self.aside.items() if time.monotonic() < told.since + told.pause}
        sites = [s for s in self.terms.sites if s in connected and (wanted is None or s in wanted)]
        if len(sites) < self.terms.quorum:
            raise EngineDown(f"waiting for sites: {len(sites)} of {self.terms.quorum} that a round needs")
        able = [site for site in sites if site not in aside]
        return tuple(able if len(able) >= self.terms.quorum else sites)

    def train_with(self, calls: Calls, sites: tuple[str, ...]) -> None:
        """Rounds of one segment."""
        field, roles, server, standing = self.patiently(sites, lambda: self.begin(calls, sites))
        while server.round < self.terms.plan.rounds and self.ledger.order() == "train":
            work = partial(self.trained, field, roles, server, standing, sites)
            result, scored, seconds = self.patiently(sites, work)
            server, standing = self.keep(field, result, standing, scored, seconds)
            silent = any(why.kind == "silent" for why in (*result.left_out.values(), *scored[1].values()))
            if silent or self.someone_is_back(sites):
                return

    def patiently(self, sites: tuple[str, ...], work: Callable[[], Result]) -> Result:
        """Work; where too few can take part although all answer, wait here: another segment would not help."""
        told, pause = Told(self.ledger), AGAIN
        while True:
            try:
                return work()
            except QuorumMissed as missed:
                if missed.is_silent or self.someone_is_back(sites):
                    raise
                told.stopped_by(missed)
                pause = AGAIN if missed.is_paused else min(2 * pause, LONGEST)
            self.rest(pause)

    def rest(self, seconds: float) -> None:
        """Wait, unless the run is not to train any more."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.ledger.order() != "train":
                raise Halted("the run is not to go on")
            time.sleep(AGAIN)

    def trained(
        self, field: Field, roles: Roles, server: ServerState, standing: Standing, sites: tuple[str, ...]
    ) -> tuple[RoundResult, Scored, float]:
        """The next round, not yet committed, its scores, and how long it took."""
        began, wanted = time.perf_counter(), self.ledger.present()
        here = [site for site in sites if wanted is None or site in wanted]
        result = one_round(field, roles, server, standing, here, self.away(sites, here))
        scored = self.scored(field, result, standing)
        # a site that died or was late while scoring may be there next time: the round is trained again as it was
        gone = {site: why for site, why in scored[1].items() if why.kind != "refused"}
        check_quorum(self.terms, [site for site in result.arrived if site not in gone], gone)
        return result, scored, time.perf_counter() - began

    def away(self, sites: tuple[str, ...], here: list[str]) -> dict[str, LeftOut]:
        """The run's sites that were not even asked."""
        reasons = {
            site: LeftOut("paused", "paused or withdrawn at the coordinator")
            if site in sites
            else LeftOut("absent", "its job does not begin" if site in self.aside else "not connected")
            for site in self.terms.sites
        }
        return {site: why for site, why in reasons.items() if site not in here}

    def someone_is_back(self, sites: tuple[str, ...]) -> bool:
        """Whether a site is connected that this segment does not reach."""
        try:
            return bool(set(self.sites_at_hand()) - set(sites))
        except EngineDown:
            return False

    def begin(self, calls: Calls, sites: tuple[str, ...]) -> tuple[Field, Roles, ServerState, Standing]:
        """The last committed round, or the beginning, and the sites' variates put on disk."""
        last = self.ledger.latest()
        if last is not None and last.identity != self.terms.identity():
            raise BadSetting(f"the run was begun with other {difference(last.identity, self.terms.identity())}")
        standing = standing_of(self.folder, last)
        field = Field(self.terms, calls, self.folder, self.ledger.progress, Patience(self.ledger))
        said, left_out = greet(field, sites, standing.members, OPENING)
        field = replace(field, form=Form.usual(said.values()))
        model = self.model(field.form, left_out)
        self.ledger.describe(said)
        server = last.server if last is not None else first_state(model)
        return field, workplace(replace(self.terms.plan, device="cpu"), model).roles, server, standing

    def model(self, form: Form | None, left_out: Mapping[str, LeftOut]) -> nn.Module:
        """The network with as many channels and classes as the sites' data have."""
        if form is None:
            raise QuorumMissed(self.terms.quorum, left_out)
        plan = self.terms.plan
        return build_model(plan.model, form.channels, len(form.classes), plan.seed)

    def scored(self, field: Field, result: RoundResult, standing: Standing) -> Scored:
        """The sites' scores of a round that is to be evaluated, and who gave none."""
        if not is_due(self.terms.plan, result.server):
            return {}, {}
        return evaluate_at(field, result.server, bases_after(standing, result), list(result.arrived))

    def keep(
        self, field: Field, result: RoundResult, standing: Standing, scored: Scored, seconds: float
    ) -> tuple[ServerState, Standing]:
        """Commit the round, say who was left out, and tell the sites that were in it."""
        after = standing_after(self.terms, self.folder, standing, result)
        evaluation, test = combined(scored[0], self.terms)
        record = {
            **record_of(self.terms.plan, result.server, result.updates),
            "seconds": seconds,
            "test": test,
            "left_out": {site: asdict(why) for site, why in result.left_out.items()},
            "federation": standing_as_json(after),
        }
        states = Variates(after)
        moment = Moment(result.server, states, record, evaluation, result.updates)
        self.ledger.commit(Checkpoint(result.server, states, record, self.terms.identity()), moment)
        number = result.server.round
        for site, why in result.left_out.items():
            if why.kind == "absent":
                continue  # the segment's event has told who is there
            self.ledger.event(f"site-{why.kind}", f"round {number} without {site}: {why.text}", site)
        for site, why in scored[1].items():
            self.ledger.event(f"site-{why.kind}", f"round {number} not scored by {site}: {why.text}", site)
        settle(field, after.bases, [site for site in result.arrived if site not in scored[1]])
        clear_variates(self.folder, after)
        return result.server, after


@dataclass(frozen=True)
class Aside:
    """For how long a site is not asked to train, and since when."""

    pause: float  # seconds
    since: float


class Told:
    """What the ledger was told while no round is committed: each thing once, not every second."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.last: dict[tuple[str, str | None], str] = {}

    def tell(self, kind: str, text: str, site: str | None = None) -> None:
        """Say it, if it is new."""
        if self.last.get((kind, site)) != text:
            self.last[kind, site] = text
            self.ledger.event(kind, text, site)

    def stopped_by(self, error: TrainingFailed) -> None:
        """Why there is no round, and which sites were refused."""
        for site, why in error.left_out.items() if isinstance(error, QuorumMissed) else ():
            if why.kind == "refused":
                self.tell("site-refused", f"no round with {site}: {why.text}", site)
        self.tell("waiting", str(error))


class Patience:
    """Asked while sites train: whether the run is still wanted; the ledger is asked once in a while."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.next = ledger, 0.0

    def __call__(self) -> None:
        """Raise where the run is to stop at once."""
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + AGAIN
        if self.ledger.order() == "stop":
            raise Halted("the run was stopped")
