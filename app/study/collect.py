"""Run folders → one record a run: its place in the study, its final metrics, its curve; and its scores."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.provenance import provenance
from app.study.plan import Run, Study
from app.study.runner import finished_result
from fl_core.intervals import HEADLINES

Record = dict[str, Any]
Scores = Mapping[str, NDArray[np.float64]]  # labels (n,), scores (n, C), and scores.SITE (n, C) of private rows


def collect(study: Study, runs: Sequence[Run], out: Path) -> dict[str, Any]:
    """What study.json says of the runs: configuration, commit, every run."""
    records = [record_of(run, finished_result(out / run.name, run)) for run in runs]
    return {"study": study.as_json(), "versions": provenance(), "runs": records}


def record_of(run: Run, result: Mapping[str, Any] | None) -> Record:
    """One run: finished, diverged (with the reason and the last good round) or missing."""
    rounds = result["rounds"] if result else []
    place = {
        "name": run.name,
        "row": run.row.name,
        "algorithm": run.plan.algorithm,
        "skew": run.data.skew,
        "local_steps": run.plan.local_steps,
        "seed": run.plan.seed,
        "rounds": run.plan.rounds,
    }
    outcome = {
        "status": "missing" if result is None else "diverged" if result["error"] else "finished",
        "error": result["error"] if result else None,
        "last_round": rounds[-1]["round"] if rounds else 0,
        "final": result["final"] if result else None,
        "patches": result["patches"] if result else None,
        "seconds": sum(record["seconds"] for record in rounds),
        "commit": result["versions"]["commit"] if result else None,
    }
    return {**place, **outcome, "curve": [point(run, record) for record in rounds]}


def point(run: Run, record: Mapping[str, Any]) -> dict[str, Any]:
    """A round on the curve; metrics where it was evaluated."""
    found = {"round": record["round"], "iteration": record["round"] * run.plan.local_steps, "loss": record["loss"]}
    test = record["test"]
    return {**found, **{name: test[name] for name in HEADLINES}} if test else found


def read_scores(folder: Path) -> Scores:
    """Labels and scores of the run's test patches."""
    with np.load(folder / "scores.npz", allow_pickle=False) as arrays:
        return dict(arrays)
