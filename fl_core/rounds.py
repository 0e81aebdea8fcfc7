"""A plan and the sites' patches → a trained model, round by round, each committed before the next begins."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from torch import nn

from fl_core.aggregate import Absent, aggregate, check_update, expected
from fl_core.checkpoint import Checkpoint
from fl_core.crew import Crew, SiteProgress, Task, crew_of
from fl_core.data import Augment, SiteData, check_sites, pool
from fl_core.evaluate import Evaluation, evaluate
from fl_core.intervals import Interval, mean_interval
from fl_core.local import Workplace, first_state
from fl_core.plan import Plan
from fl_core.state import ServerState, SiteState, Update
from mammofed.errors import BadSetting

log = logging.getLogger(__name__)
Report = Callable[[Evaluation], Mapping[str, Any]]
Presence = Callable[[], frozenset[str] | None]  # who takes part in the next round; None: all


class Ledger(Protocol):
    """Where rounds are committed, and gone on from."""

    def latest(self) -> Checkpoint | None:
        """The last committed round."""

    def commit(self, checkpoint: Checkpoint, moment: "Moment") -> None:
        """Keep a round as a whole, or raise and keep nothing of it."""


@dataclass(frozen=True)
class Federation:
    """What is trained: the plan, the network and the sites."""

    plan: Plan
    build: Callable[[], nn.Module]  # picklable, where worker processes are used
    sites: tuple[SiteData, ...]
    augment: Augment | None = None

    def task(self) -> Task:
        """What the crew gets: the sites, or their pooled data as one site with batch N × B."""
        if not self.plan.row.pooled:
            return Task(self.plan, self.build, self.sites, self.augment)
        plan = replace(self.plan, batch=self.plan.batch * len(self.sites))
        return Task(plan, self.build, (pool(self.sites, self.sites[0].seed),), self.augment)

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with a run that continues it: the plan but its length, and the data."""
        plan = {
            name: value for name, value in self.plan.as_json().items() if name not in ("rounds", "evaluate_every")
        }
        plan["freeze_from"] = self.plan.freeze_iteration if self.plan.row.freezes else None
        return {"plan": plan, "data": {site.name: site.train.fingerprint for site in self.sites}}


@dataclass(frozen=True)
class Moment:
    """The run after one committed round."""

    server: ServerState
    states: Mapping[str, SiteState]
    record: Mapping[str, Any]
    evaluation: Evaluation | None
    updates: tuple[Update, ...]  # of the sites that took part; of their tensors the running statistics alone


def run_rounds(
    federation: Federation,
    report: Report,
    ledger: Ledger | None = None,
    workers: int = 0,
    progress: SiteProgress = lambda site, steps: None,
    present: Presence = lambda: None,
    shown: Callable[[Evaluation], Evaluation] = lambda evaluation: evaluation,
) -> Iterator[Moment]:
    """Train, aggregate, evaluate, commit: one `Moment` a round, from the last committed one on."""
    check_sites(federation.sites)
    task = federation.task()
    place = task.workplace()
    identity = federation.identity()
    server, states = starting_point(task, place, ledger, identity)
    with crew_of(task, place, workers, progress) as crew:
        while server.round < federation.plan.rounds:
            here = present()
            began = time.perf_counter()
            server, states, updates = one_round(task, place, crew, server, states, here)
            seconds = time.perf_counter() - began
            due = is_due(federation.plan, server)
            evaluation = shown(evaluate(place, federation.sites, server, states)) if due else None
            record = {**record_of(task.plan, server, updates), "seconds": seconds}
            record["test"] = dict(report(evaluation)) if evaluation else None
            moment = Moment(server, states, record, evaluation, tuple(updates))
            if ledger is not None:
                ledger.commit(Checkpoint(server, states, record, identity), moment)
            yield moment


def one_round(
    task: Task,
    place: Workplace,
    crew: Crew,
    server: ServerState,
    states: Mapping[str, SiteState],
    here: frozenset[str] | None,
) -> tuple[ServerState, dict[str, SiteState], list[Update]]:
    """The sites that are here train; their updates are checked and summed as they come; then all commit."""
    row = task.plan.row
    wanted = expected(row, place.roles, server)
    present = [site for site in task.sites if here is None or row.pooled or site.name in here]
    patches = {site.name: site.patches for site in present}
    proposed: dict[str, SiteState] = {}
    summaries: list[Update] = []

    def updates() -> Iterator[Update]:
        for update, state in crew(server, states, present):
            proposed[update.site] = state
            statistics = {name: update.model[name] for name in place.roles.statistics if name in update.model}
            summaries.append(replace(update, model=statistics, c={}, k={}))
            yield check_update(wanted, update)
            del update  # before the next one is trained

    absent = [
        Absent(site.patches, partial(states.__getitem__, site.name))
        for site in task.sites
        if site.name not in patches and (states[site.name].c or states[site.name].k)
    ]
    committed = aggregate(row, place.roles, server, updates(), patches, absent)
    return committed, {**states, **proposed}, summaries


def starting_point(
    task: Task, place: Workplace, ledger: Ledger | None, identity: Mapping[str, Any]
) -> tuple[ServerState, Mapping[str, SiteState]]:
    """The last committed round, or the beginning."""
    found = ledger.latest() if ledger is not None else None
    if found is None:
        return first_state(place.model), {site.name: SiteState() for site in task.sites}
    if found.identity != identity:
        raise BadSetting(
            f"the last round was trained with other {difference(found.identity, identity)}: "
            "use the same settings to go on, or start anew elsewhere"
        )
    log.info("going on after round %d", found.server.round)
    return found.server, dict(found.sites)


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The names of the settings in which two identities differ."""
    if old["data"] != new["data"]:
        return "data"
    return ", ".join(name for name in new["plan"] if old["plan"].get(name) != new["plan"][name])


def is_due(plan: Plan, server: ServerState) -> bool:
    """Whether the round just finished is to be evaluated."""
    return server.round % plan.evaluate_every == 0 or server.round == plan.rounds


def record_of(plan: Plan, server: ServerState, updates: Sequence[Update]) -> dict[str, Any]:
    """What is shown of a round: losses and steps of the sites, and the learning rate."""
    return {
        "round": server.round,
        "rate": plan.schedule(server.round * plan.local_steps - 1),
        **loss_of(plan, updates),
        "sites": {update.site: {**loss_of(plan, [update]), "steps": update.steps} for update in updates},
    }


def loss_of(plan: Plan, updates: Sequence[Update]) -> dict[str, float | None]:
    """Mean training loss of the sites, its 95 % interval over the round's batches, and the patches behind it."""
    total = sum(update.patches for update in updates)
    weights = [update.patches / total for update in updates]
    mean = sum(weight * update.loss for weight, update in zip(weights, updates, strict=True))
    errors = [update.loss_error for update in updates if update.loss_error is not None]
    found = Interval(mean, None, None)
    if len(errors) == len(updates):
        found = mean_interval(mean, errors, weights, plan.local_steps - 1)
    # a site with less than a batch trains on all it has at each step: their number would tell how many it has
    told = all(update.patches >= plan.batch for update in updates)
    n = plan.local_steps * plan.batch * len(updates) if told else None
    return {"loss": mean, "loss_low": found.low, "loss_high": found.high, "loss_n": n}
