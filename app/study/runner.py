"""Runs → their folders, filled: each in a process of its own, some side by side, finished ones skipped."""

import fcntl
import json
import multiprocessing
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from app.simulation import Simulation, simulate
from app.study.plan import Run
from fl_core.rounds import Moment
from mammofed.errors import BadSetting, MammofedError, TrainingFailed
from mammofed.processes import leave_with_parent


class Watch(Protocol):
    """Who is told how the study goes on."""

    def started(self, run: Run) -> None:
        """A process begins with the run."""

    def moved(self, run: Run, iterations: int) -> None:
        """So many iterations of the run are committed."""

    def ended(self, run: Run, outcome: str) -> None:
        """The run is over: finished, diverged, or its process died."""


@dataclass(frozen=True)
class Worker:
    """A run on its way."""

    run: Run
    process: BaseProcess
    messages: Connection


def finished_result(folder: Path, run: Run) -> dict[str, Any] | None:
    """The run's result.json, where it is there, is this run's, and has its scores beside it unless it diverged."""
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_bytes())
    except FileNotFoundError:
        return None
    whole = result["error"] is not None or (folder / "scores.npz").exists()
    return result if whole and result["configuration"] == run.configuration else None


def run_all(runs: Sequence[Run], out: Path, jobs: int, resamples: int, watch: Watch) -> list[Run]:
    """Train what is not finished, `jobs` runs at a time; the runs whose process died are returned."""
    waiting = [run for run in runs if finished_result(out / run.name, run) is None]
    working: list[Worker] = []
    died: list[Run] = []
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                working.append(start(waiting.pop(0), out, resamples))
                watch.started(working[-1].run)
            ready = wait([worker.messages for worker in working])
            for worker in [worker for worker in working if worker.messages in ready]:
                if not hear(worker, watch):
                    working.remove(worker)
                    died += close(worker, out, watch)
    finally:
        for worker in working:
            worker.process.terminate()
            worker.process.join()
    return died


def start(run: Run, out: Path, resamples: int) -> Worker:
    """A process for the run, forked from one that has torch loaded already and has done nothing with it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    messages, told = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(run, out / run.name, resamples, told), name=run.name)
    process.start()
    told.close()  # so that the end of the process is the end of the messages
    return Worker(run, process, messages)


def hear(worker: Worker, watch: Watch) -> bool:
    """Pass a message on; False when there will be no more."""
    try:
        message = worker.messages.recv()
    except EOFError:
        return False
    if isinstance(message, str):
        raise BadSetting(f"run {worker.run.name}: {message}")
    watch.moved(worker.run, message)
    return True


def close(worker: Worker, out: Path, watch: Watch) -> list[Run]:
    """See the process off; the run is returned where it has no result."""
    worker.process.join()
    worker.messages.close()
    result = finished_result(out / worker.run.name, worker.run)
    if result is None:
        watch.ended(worker.run, f"its process ended with code {worker.process.exitcode}")
        return [worker.run]
    watch.ended(worker.run, f"diverged: {result['error']}" if result["error"] else "finished")
    return []


def work(run: Run, folder: Path, resamples: int, messages: Connection) -> None:
    """In the run's process: train from where the folder stands; a refusal is told as a string."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the study's process ends this one
    leave_with_parent()
    folder.mkdir(parents=True, exist_ok=True)

    def watch(moment: Moment) -> None:
        messages.send(moment.server.round * run.plan.local_steps)

    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a process of a study that was killed is gone first
        try:
            simulation = Simulation(run.plan, run.data, folder, 0, resamples)
            simulate(simulation, resume=True, watch=watch, progress=lambda site, steps: None)
        except TrainingFailed:
            pass  # result.json says so
        except MammofedError as error:
            messages.send(str(error))
