"""A plan and the sites' patches → a trained model, round by round, each committed before the next begins."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from fl_core.aggregate import aggregate, check_update, expected
from fl_core.checkpoint import Checkpoint, read_latest, write_checkpoint
from fl_core.crew import Crew, SiteProgress, Task, crew_of
from fl_core.data import Augment, SiteData, check_sites, pool
from fl_core.evaluate import Evaluation, evaluate
from fl_core.local import Workplace, first_state
from fl_core.plan import Plan
from fl_core.state import ServerState, SiteState, Update
from mammofed.errors import BadSetting

log = logging.getLogger(__name__)
Report = Callable[[Evaluation], Mapping[str, Any]]


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


def run_rounds(
    federation: Federation,
    report: Report,
    folder: Path | None = None,
    workers: int = 0,
    progress: SiteProgress = lambda site, steps: None,
) -> Iterator[Moment]:
    """Train, aggregate, evaluate, commit: one `Moment` a round, from the last committed one on."""
    check_sites(federation.sites)
    task = federation.task()
    place = task.workplace()
    identity = federation.identity()
    server, states = starting_point(task, place, folder, identity)
    with crew_of(task, place, workers, progress) as crew:
        while server.round < federation.plan.rounds:
            began = time.perf_counter()
            server, states, updates = one_round(task, place, crew, server, states)
            seconds = time.perf_counter() - began
            evaluation = (
                evaluate(place, federation.sites, server, states) if is_due(federation.plan, server) else None
            )
            record = {**record_of(federation.plan, server, updates), "seconds": seconds}
            record["test"] = dict(report(evaluation)) if evaluation else None
            if folder is not None:
                write_checkpoint(folder, Checkpoint(server, states, record, identity))
            yield Moment(server, states, record, evaluation)


def one_round(
    task: Task, place: Workplace, crew: Crew, server: ServerState, states: Mapping[str, SiteState]
) -> tuple[ServerState, dict[str, SiteState], list[Update]]:
    """All sites train; their updates are checked and summed as they come; then all commit."""
    row = task.plan.row
    wanted = expected(row, place.roles, server)
    proposed: dict[str, SiteState] = {}
    summaries: list[Update] = []

    def updates() -> Iterator[Update]:
        for update, state in crew(server, states):
            proposed[update.site] = state
            summaries.append(replace(update, model={}, c={}, k={}))
            yield check_update(wanted, update)
            del update  # before the next one is trained

    patches = {site.name: site.patches for site in task.sites}
    committed = aggregate(row, place.roles, server, updates(), patches)
    return committed, proposed, summaries


def starting_point(
    task: Task, place: Workplace, folder: Path | None, identity: Mapping[str, Any]
) -> tuple[ServerState, Mapping[str, SiteState]]:
    """The last committed round of the folder, or the beginning."""
    found = read_latest(folder) if folder is not None else None
    if found is None:
        return first_state(place.model), {site.name: SiteState() for site in task.sites}
    if found.identity != identity:
        raise BadSetting(
            f"{folder} holds a run with other {difference(found.identity, identity)}: "
            "use the same settings to go on, or another folder"
        )
    log.info("going on after round %d", found.server.round)
    return found.server, found.sites


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
    total = sum(update.patches for update in updates)
    return {
        "round": server.round,
        "rate": plan.schedule(server.round * plan.local_steps - 1),
        "loss": sum(update.loss * update.patches for update in updates) / total,
        "sites": {update.site: {"loss": update.loss, "steps": update.steps} for update in updates},
    }
