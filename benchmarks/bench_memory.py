"""Runs of a study → the memory that `mammofed study` expects of each, against the most its process took."""

import multiprocessing
import resource
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.study.memory import estimate
from app.study.plan import Run, read_study, runs_of
from app.study.runner import work
from benchmarks.ratio import Ratio

RESAMPLES = 200
SETTINGS: dict[str, dict[str, Any]] = {
    "densenet121, 48 px, B = 32": {"model": "densenet121", "image_size": 48, "patches": 1000},
    "densenet121, 96 px, B = 32": {"model": "densenet121", "image_size": 96, "patches": 500},
    "resnet18, 32 px, B = 128": {"model": "resnet18", "image_size": 32, "patches": 2000, "batch": 128},
    "densenet-small, 48 px, B = 32": {"model": "densenet-small", "image_size": 48, "patches": 2000},
}
ROWS = ("centralized", "bn-scaffold-std", "fedtan")
SHORT = {"algorithms": list(ROWS), "rounds": 2, "local_steps": 2}


def measure() -> list[Ratio]:
    """Expected / taken for each setting and row: below 1 a study may run out of memory."""
    return [
        compared(name, run)
        for name, setting in SETTINGS.items()
        for run in runs_of(read_study(None, "algorithms", {**SHORT, **setting}))
    ]


def compared(name: str, run: Run) -> Ratio:
    """One run."""
    expected, taken = estimate(run), peak_of(run)
    return Ratio(
        f"memory of a run, expected / taken: {run.plan.algorithm}, {name}",
        expected / taken,
        at_least=1,
        detail=f"{expected / 1e9:.2f} GB / {taken / 1e9:.2f} GB",
    )


def peak_of(run: Run) -> float:
    """Bytes that the run's process had in memory at most, trained as a study trains it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["app.study.runner"])
    heard, told = context.Pipe(duplex=False)
    with TemporaryDirectory() as folder:
        process = context.Process(target=train_and_tell, args=(run, Path(folder), told))
        process.start()
        told.close()
        messages = [heard.recv() for _ in range(run.plan.rounds + 1)]
        process.join()
    return float(messages[-1])


def train_and_tell(run: Run, folder: Path, told: Connection) -> None:
    """In the run's process: train, then tell the most memory it had."""
    work(run, folder, RESAMPLES, told)
    told.send(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
