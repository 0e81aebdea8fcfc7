"""Runs that should train → worker processes, one a run; a worker that dies is started again."""

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess

from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.coordinator.db import EventRow, RunRow, now, writing_session
from app.coordinator.worker import work
from app.settings import Settings

log = logging.getLogger(__name__)
TICK = 0.5  # seconds between two looks at the database, when nothing happens
DEATHS = 5  # in a row, without a round between them, after which a run fails
LONGEST_REST = 10.0  # seconds before a worker that keeps dying is started again
NO_FAULT = (os.EX_OK, os.EX_TEMPFAIL)  # it left as it was told to, or the database was away


@dataclass(frozen=True)
class Worker:
    """A process that trains a run."""

    process: BaseProcess
    lifeline: Connection  # closed: the worker ends
    began_at: int  # the run's last committed round when it was started


@dataclass(frozen=True)
class Deaths:
    """How often in a row a run's workers have died, and when the next may start."""

    count: int = 0
    rest_until: float = 0.0


class Supervisor:
    """A thread that keeps the database's wish and the processes in step."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.settings, self.engine = settings, engine
        self.workers: dict[str, Worker] = {}
        self.deaths: dict[str, Deaths] = {}
        self.ears, self.mouth = multiprocessing.Pipe(duplex=False)
        self.ending = False
        self.context: ForkServerContext = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["app.coordinator.worker", "monai.networks.nets"])
        self.thread = threading.Thread(target=self.watch, name="supervisor", daemon=True)

    def start(self) -> None:
        """Begin to watch; runs that were running go on."""
        forkserver.ensure_running()  # workers are forked from a process that has loaded all they need
        self.thread.start()

    def stop(self) -> None:
        """End all workers; their runs stay running in the database, and go on with the next start."""
        self.ending = True
        self.wake()
        self.thread.join()
        for worker in self.workers.values():
            end(worker)

    def wake(self) -> None:
        """Look at the database now."""
        self.mouth.send_bytes(b"!")

    def watch(self) -> None:
        """Look, act, wait; nothing that goes wrong once is a reason to end: without this thread no run trains."""
        while not self.ending:
            try:
                self.look()
            except SQLAlchemyError as error:
                log.error("the database cannot be used: %s", error)
            except Exception:
                log.exception("the supervisor could not do its work; it tries again")
            sentinels = [worker.process.sentinel for worker in self.workers.values()]
            ready = wait([self.ears, *sentinels], timeout=TICK)
            if self.ears in ready:
                self.ears.recv_bytes()

    def look(self) -> None:
        """Bring workers and runs into step once."""
        with Session(self.engine) as session:
            rows = list(session.scalars(select(RunRow).where(RunRow.state == "running").order_by(RunRow.number)))
        running = {run.id: run for run in rows}
        for name in [name for name, worker in self.workers.items() if worker.process.exitcode is not None]:
            self.bury(name, running.get(name))
        for name in self.workers.keys() - running.keys():
            self.workers[name].process.terminate()  # stopped: what it was training is not wanted any more
        self.employ(run for run in rows if run.id not in self.workers)

    def employ(self, idle: Iterable[RunRow]) -> None:
        """Start workers for the oldest runs, as many as there are places; tell the others that they wait."""
        for run in idle:
            if run.until is not None and run.round >= run.until:
                self.pause(run)
            elif len(self.workers) >= self.settings.parallel_runs:
                self.tell(run, f"queued: {self.settings.parallel_runs} runs train at a time")
            elif time.monotonic() >= self.deaths.get(run.id, Deaths()).rest_until:
                self.hire(run)

    def pause(self, run: RunRow) -> None:
        """A run that is to pause and has no round open pauses now."""
        with writing_session(self.engine) as session:
            row = session.get_one(RunRow, run.id, with_for_update=True)
            if row.state == "running" and row.until is not None and row.round >= row.until:
                row.state, row.until, row.waiting = "paused", None, None
                session.add(EventRow(at=now(), kind="paused", text="paused", run=run.id, round=row.round))

    def hire(self, run: RunRow) -> None:
        """A new worker, with a new epoch: from now on only it may commit."""
        with writing_session(self.engine) as session:
            row = session.get_one(RunRow, run.id, with_for_update=True)
            if row.state != "running":
                return
            row.epoch += 1
            row.waiting = None
            epoch, round = row.epoch, row.round
        theirs, ours = self.context.Pipe(duplex=False)
        process = self.context.Process(target=work, args=(self.settings, run.id, epoch, theirs), daemon=True)
        fields = {"run": run.id, "round": round, "worker": epoch}
        with theirs:
            try:
                process.start()
            except (EOFError, OSError) as error:  # the forkserver has died, or the machine takes no more processes
                ours.close()
                log.error("no worker can be started: %r", error, extra={"fields": fields})
                self.put_off(run, f"no worker can be started ({type(error).__name__}); it is tried again")
                return
        self.workers[run.id] = Worker(process, ours, round)
        log.info("worker started", extra={"fields": {**fields, "pid": process.pid}})

    def put_off(self, run: RunRow, why: str) -> None:
        """Try again in a while; it is no fault of the run, so no death is counted."""
        before = self.deaths.get(run.id, Deaths()).count
        self.deaths[run.id] = Deaths(before, time.monotonic() + 2 * TICK)
        with writing_session(self.engine) as session:
            session.get_one(RunRow, run.id).waiting = why

    def bury(self, name: str, run: RunRow | None) -> None:
        """Take note of a worker's end; where its run still runs, it died, and too many deaths fail the run."""
        worker = self.workers.pop(name)
        end(worker)
        if run is None:
            self.deaths.pop(name, None)
            return
        before = self.deaths.get(name, Deaths()).count if run.round == worker.began_at else 0
        if worker.process.exitcode in NO_FAULT:  # resumed meanwhile, or to be tried again
            self.deaths[name] = Deaths(before, time.monotonic() + TICK)
            return
        rest = min(LONGEST_REST, 0.1 * 2**before)
        self.deaths[name] = Deaths(before + 1, time.monotonic() + rest)
        words = f"the worker ended with code {worker.process.exitcode} after round {run.round}"
        log.warning(words, extra={"fields": {"run": name, "round": run.round}})
        self.after_death(name, words, before + 1)

    def after_death(self, name: str, words: str, count: int) -> None:
        """Say that the run goes on, or fail it."""
        with writing_session(self.engine) as session:
            row = session.get_one(RunRow, name, with_for_update=True)
            if row.state != "running":
                return
            text = f"{words}; it is started again"
            if count >= DEATHS:
                text = f"{words}, {count} times in a row: see the coordinator's log; the last good round stays"
                row.state, row.reason, row.ended_at = "failed", text, now()
            session.add(EventRow(at=now(), kind="worker", text=text, run=name, round=row.round))

    def tell(self, run: RunRow, why: str) -> None:
        """Say why a run does not train yet, once."""
        if run.waiting == why:
            return
        with writing_session(self.engine) as session:
            session.get_one(RunRow, run.id).waiting = why


def end(worker: Worker) -> None:
    """End a worker's process and wait for it."""
    worker.process.terminate()
    worker.process.join()
    worker.lifeline.close()
