"""A plan and a choice of data → a folder with result.json, the model, and the state to go on from."""

import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch

from app.provenance import provenance
from app.sources import DataChoice, augmentation, sites_from
from fl_core.checkpoint import FolderLedger, read_latest, read_records
from fl_core.crew import SiteProgress
from fl_core.data import SiteData
from fl_core.evaluate import Evaluation, evaluate, report
from fl_core.models import build_model
from fl_core.plan import Plan
from fl_core.rounds import Federation, Moment, run_rounds
from mammofed.errors import BadSetting, TrainingFailed
from mammofed.files import write_atomically

Watch = Callable[[Moment], None]


@dataclass(frozen=True)
class Simulation:
    """One run on one machine."""

    plan: Plan
    data: DataChoice
    out: Path
    workers: int = 0
    resamples: int = 2000  # of the bootstrap, each time the model is evaluated

    @property
    def state(self) -> Path:
        """Where the rounds are committed."""
        return self.out / "state"

    @property
    def committed(self) -> int:
        """Rounds that the folder holds."""
        return FolderLedger(self.state).committed()


def simulate(simulation: Simulation, resume: bool, watch: Watch, progress: SiteProgress) -> dict[str, Any]:
    """Train to the end, or go on with what the folder holds; write the result, also of a run that diverged."""
    if simulation.committed and not resume:
        raise BadSetting(f"{simulation.out} holds a run already: add --resume to go on, or use another --out")
    if simulation.committed > simulation.plan.rounds:
        raise BadSetting(
            f"{simulation.out} has trained more than {simulation.plan.rounds} rounds: use another --out"
        )
    began = time.perf_counter()
    sites = sites_from(simulation.data)
    failure: TrainingFailed | None = None
    evaluation: Evaluation | None = None  # of the last round
    try:
        for moment in moments(simulation, sites, progress):
            watch(moment)
            evaluation = moment.evaluation
    except TrainingFailed as error:
        failure = error
    else:
        write_scores(simulation.out, evaluation or evaluated_again(simulation, sites))
    result = {**summary(simulation, sites), "error": str(failure) if failure else None}
    result["seconds"] = time.perf_counter() - began
    write_atomically(simulation.out / "result.json", json.dumps(result, indent=1).encode())
    if failure:
        raise failure
    return result


def moments(simulation: Simulation, sites: tuple[SiteData, ...], progress: SiteProgress) -> Iterator[Moment]:
    """The rounds still to be trained; the model is written after the last."""
    federation = federation_of(simulation.plan, simulation.data, sites)
    scored = partial(report, resamples=simulation.resamples, seed=simulation.plan.seed)
    yield from run_rounds(federation, scored, FolderLedger(simulation.state), simulation.workers, progress)


def federation_of(plan: Plan, data: DataChoice, sites: tuple[SiteData, ...]) -> Federation:
    """The plan, its network with as many channels and classes as the data have, and the sites."""
    source = sites[0].train
    channels = source.read(np.zeros(1, np.int64)).shape[1]
    build = partial(build_model, plan.model, channels, len(source.classes), plan.seed)
    return Federation(plan, build, sites, augmentation(data))


def evaluated_again(simulation: Simulation, sites: tuple[SiteData, ...]) -> Evaluation:
    """The last round's scores, of a run that was cut between its last round and its result."""
    last = read_latest(simulation.state)
    assert last is not None  # a plan has one round or more
    place = federation_of(simulation.plan, simulation.data, sites).task().workplace()
    return evaluate(place, sites, last.server, last.sites)


def write_scores(out: Path, evaluation: Evaluation) -> None:
    """`scores.npz`, for paired tests between runs: labels and probabilities, and nothing of the patches.

    `scores` (n, C) has each patch by its own site's model; `scores.SITE` all patches by that site's model.
    """
    pooled = evaluation.pooled
    models = {f"scores.{name}": scored.scores for name, scored in evaluation.by_site_model.items()}
    arrays = {"labels": pooled.labels, "scores": pooled.scores, **models}
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **arrays)
    write_atomically(out / "scores.npz", data.getvalue())


def summary(simulation: Simulation, sites: tuple[SiteData, ...]) -> dict[str, Any]:
    """What result.json says: configuration, counts, every round, the final metrics, versions."""
    last = read_latest(simulation.state)
    records = read_records(simulation.state, last.server.round) if last else []
    tested = [record["test"] for record in records if record["test"]]
    if last:
        write_models(simulation.out, last.server.model, {name: site.private for name, site in last.sites.items()})
    return {
        "configuration": {**simulation.plan.as_json(), "data": simulation.data.as_json()},
        "classes": list(sites[0].train.classes),
        "patches": {site.name: counts(site) for site in sites},
        "rounds": records,
        "final": tested[-1] if tested else None,
        "versions": provenance(),
    }


def counts(site: SiteData) -> dict[str, list[int]]:
    """Training and test patches of each class."""
    classes = len(site.train.classes)
    parts = {"train": site.train, "test": site.test}
    return {name: np.bincount(part.labels, minlength=classes).tolist() for name, part in parts.items()}


def write_models(out: Path, shared: dict[str, Any], private: dict[str, dict[str, Any]]) -> None:
    """`model.safetensors`, and one more for each site whose tensors are its own."""
    write_atomically(out / "model.safetensors", safetensors.torch.save(shared))
    for name, tensors in private.items():
        if tensors:
            data = safetensors.torch.save({**shared, **tensors})
            write_atomically(out / f"model.{name}.safetensors", data)
