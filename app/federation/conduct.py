"""Terms, a ledger and an engine → rounds committed one after the other, whatever happens to sites and engine.

The engine reaches sites in *segments* of many rounds. A segment ends when a site fell silent, when one came back,
or when the engine's job died; the next begins at the last committed round. The ledger is the truth.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import nn

from app.federation.answers import Answer, Form
from app.federation.field import Field, LeftOut
from app.federation.link import Calls, EngineDown, LinkLost
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

    def run(self) -> None:
        """Train to the last round, or until the ledger's order is another."""
        told = Told(self.ledger)
        while not self.is_over():
            try:
                sites = self.sites_at_hand()
                with self.engine.segment(sites) as calls:
                    self.ledger.event("segment", f"training with {', '.join(sites)}")
                    told = Told(self.ledger)
                    self.train_with(calls, sites)
            except (EngineDown, LinkLost, QuorumMissed) as error:
                told.stopped_by(error)
                time.sleep(AGAIN)
            except Halted:
                return

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
        sites = [s for s in self.terms.sites if s in connected and (wanted is None or s in wanted)]
        if len(sites) < self.terms.quorum:
            raise EngineDown(f"waiting for sites: {len(sites)} of {self.terms.quorum} that a round needs")
        return tuple(sites)

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
            else LeftOut("absent", "not connected")
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
