"""A run's rounds ↔ the database and the run's folder; the database's transaction is the moment of commit.

States and scores go to disk first, each under the digest of its bytes; then one transaction writes the round and
what it changes of the run. A kill at any moment leaves the round there as a whole or not at all. The run's `epoch`
is the number of the worker that may write: an older worker, however late it wakes, is refused.
"""

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from sqlalchemy import Engine, delete, select
from sqlalchemy.orm import Session

from app.coordinator.db import DriftRow, EventRow, RoundRow, RunRow, RunSiteRow, SiteRow, now, writing_session
from app.schemas.runs import RunSettings
from fl_core.checkpoint import (
    KEPT_ROUNDS,
    Checkpoint,
    DamagedCheckpoint,
    canonical,
    clear_objects,
    read_states,
    write_object,
    write_states,
)
from fl_core.drift import Drift, mean_of
from fl_core.evaluate import Evaluation
from fl_core.intervals import HEADLINES
from fl_core.rounds import Moment
from fl_core.wire import tensor_parts
from mammofed.errors import MammofedError
from mammofed.files import writing

log = logging.getLogger(__name__)
Order = Literal["train", "pause", "stop"]
PROGRESS_EVERY = 1.0  # seconds between two reports of how far a site is


class Interrupted(MammofedError):
    """The run is not this worker's to train any more: paused, stopped, or taken over."""


class RunLedger:
    """One worker's access to its run."""

    def __init__(self, engine: Engine, run: str, epoch: int, folder: Path) -> None:
        self.engine, self.run, self.epoch, self.folder = engine, run, epoch, folder
        self.measure: Callable[[Moment], Drift] | None = None  # set by the engine, which knows the model
        self.away: Mapping[str, str] = {}  # sites that are not in the open round, and why
        self.pace = Pace()
        self.round = 0  # the last committed one that this worker knows of

    # what the run is told

    def settings(self) -> RunSettings:
        """What was asked for."""
        with Session(self.engine) as session:
            run = session.get_one(RunRow, self.run)
            self.round = run.round
            return RunSettings.model_validate(run.settings)

    def order(self) -> Order:
        """What to do next."""
        with Session(self.engine) as session:
            run = session.get_one(RunRow, self.run)
            if run.state != "running" or run.epoch != self.epoch:
                return "stop"
            return "pause" if run.until is not None and run.round >= run.until else "train"

    def obey(self) -> None:
        """Go on, or leave: a run that is to pause is paused here, between two rounds."""
        order = self.order()
        if order == "pause":
            with writing_session(self.engine) as session:
                run = self.mine(session)
                run.state, run.until, run.waiting = "paused", None, None
                self.note(session, "paused", "paused", run.round)
        if order != "train":
            raise Interrupted(f"run {self.run}: {order}")

    def conditions(self) -> dict[str, str]:
        """The condition of each enrolled site; a site that nobody enrolled is active."""
        with Session(self.engine) as session:
            return {site.name: site.condition for site in session.scalars(select(SiteRow))}

    # rounds

    def latest(self) -> Checkpoint | None:
        """The last committed round; where its files are damaged, the one before, and the run is set back to it."""
        with Session(self.engine) as session:
            run = session.get_one(RunRow, self.run)
            newest = select(RoundRow).where(RoundRow.run == self.run).order_by(RoundRow.number.desc())
            rounds = list(session.scalars(newest.limit(KEPT_ROUNDS)))
        for row in rounds:
            try:
                states = read_states(self.folder, row.states)
            except DamagedCheckpoint as error:
                self.event("damaged", f"{error}; the round before it is used", round=row.number)
                continue
            if row.number < run.round:
                self.set_back(row.number)
            self.round = row.number
            return Checkpoint(*states, row.record, run.identity or {})
        if rounds:
            raise DamagedCheckpoint(f"run {self.run}: no round of it can be read any more; start it anew")
        return None

    def committed(self) -> int:
        """The number of the last committed round, whether its files are whole or not."""
        with Session(self.engine) as session:
            return session.get_one(RunRow, self.run).round

    def set_back(self, number: int) -> None:
        """Forget the rounds after that one."""
        with writing_session(self.engine) as session:
            self.mine(session).round = number
            for table in (RoundRow, DriftRow):
                session.execute(delete(table).where(table.run == self.run, table.number > number))

    def commit(self, checkpoint: Checkpoint, moment: Moment) -> None:
        """Keep a round as a whole, with the run's new state in the same transaction."""
        states = write_states(self.folder, checkpoint)
        found = self.measure(moment) if self.measure else None
        record = {**checkpoint.record, "sites": self.parts(checkpoint.record)}
        shown = self.shown(moment, states) if moment.record["test"] else None
        number = checkpoint.server.round
        with writing_session(self.engine) as session:
            run = self.mine(session)
            if number != run.round + 1:
                raise Interrupted(f"run {self.run}: round {number} after {run.round}")
            session.add(
                RoundRow(
                    run=self.run,
                    number=number,
                    committed_at=now(),
                    record=record,
                    states=states,
                    drift=means(found),
                )
            )
            if found is not None:
                session.add(DriftRow(run=self.run, number=number, layers=asdict(found)))
            run.round, run.identity, run.waiting = number, dict(checkpoint.identity), None
            run.data_key = data_key(checkpoint.identity)
            self.judge(run, number, shown)
            self.next_state(session, run)
        log.info("round committed", extra={"fields": {"round": number}})
        self.pace, self.round = Pace(), number
        self.clear()

    def parts(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Each site's part in the round: what it did and how long it took, or why it was away."""
        here = {site: {"seconds": self.pace.seconds(site), **part} for site, part in record["sites"].items()}
        return {**here, **{site: {"away": why} for site, why in self.away.items()}}

    def shown(self, moment: Moment, states: Mapping[str, Any]) -> dict[str, Any]:
        """What is kept of an evaluated round for as long as it is the last or the best."""
        test = moment.record["test"]
        headline = headline_of(test)
        sites = {site: headline_of(own) for site, own in test["sites"].items()}
        round = moment.server.round
        found = {"round": round, "headline": headline, "sites": sites, "states": states}
        if moment.evaluation is None:
            return found  # the scores stay at the sites
        return {**found, "scores": write_object(self.folder, score_parts(moment.evaluation))}

    def judge(self, run: RunRow, number: int, shown: dict[str, Any] | None) -> None:
        """The round is the latest evaluated one, and the best so far if its selection metric says so."""
        if shown is None:
            return
        run.latest = shown
        value = shown["headline"][run.settings.get("selection", "auc_ovo")]["value"]
        if run.best is None or (value is not None and (run.best_value is None or value > run.best_value)):
            run.best, run.best_round, run.best_value = shown, number, value

    def next_state(self, session: Session, run: RunRow) -> None:
        """The end, a pause, or on."""
        text = f"round {run.round} of {run.settings['rounds']}"
        if run.round >= run.settings["rounds"]:
            run.state, run.ended_at, run.until = "completed", now(), None
        elif run.until is not None and run.round >= run.until:
            run.state, run.until = "paused", None
        self.note(session, "round", f"{text} committed", run.round)
        if run.state != "running":
            self.note(session, run.state, f"{run.state} after {text}", run.round)

    def clear(self) -> None:
        """Delete what neither the newest rounds nor the latest or best model name."""
        with Session(self.engine) as session:
            run = session.get_one(RunRow, self.run)
            newest = select(RoundRow.states).where(RoundRow.run == self.run).order_by(RoundRow.number.desc())
            named = [*session.scalars(newest.limit(KEPT_ROUNDS))]
            kept = {key for states in named for key in (states["server"], *states["sites"].values())}
            for shown in (run.latest, run.best):
                if shown is not None:
                    kept.update([shown["states"]["server"], *shown["states"]["sites"].values()])
                    kept.update([shown["scores"]] if "scores" in shown else [])
        with writing(self.folder):
            clear_objects(self.folder, kept)

    # what the run tells

    def mine(self, session: Session) -> RunRow:
        """The run's row, held for writing; refused where the run is not this worker's any more."""
        run = session.get_one(RunRow, self.run, with_for_update=True)
        if run.epoch != self.epoch or run.state != "running":
            raise Interrupted(f"run {self.run} is {run.state}, or another worker has taken it over")
        return run

    def fail(self, reason: str) -> None:
        """End the run; its last good round stays."""
        with writing_session(self.engine) as session:
            run = self.mine(session)
            run.state, run.reason, run.ended_at, run.waiting = "failed", reason, now(), None
            self.note(session, "failed", reason, run.round)

    def hold(self, reason: str) -> None:
        """Pause the run for something that a person must mend first."""
        with writing_session(self.engine) as session:
            run = self.mine(session)
            run.state, run.reason, run.until, run.waiting = "paused", reason, None, None
            self.note(session, "held", reason, run.round)

    def wait_for(self, why: str | None) -> None:
        """Say why a running run does not train; None: it does."""
        with writing_session(self.engine) as session:
            run = self.mine(session)
            if run.waiting != why:
                run.waiting = why
                if why:
                    self.note(session, "waiting", why, run.round)

    def describe(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what is known of each site's data, in the order of the sums."""
        with writing_session(self.engine) as session:
            self.mine(session)
            for position, (site, known) in enumerate(facts.items()):
                row = session.get(RunSiteRow, (self.run, site)) or RunSiteRow(run=self.run, site=site)
                row.position, row.facts = position, dict(known)
                session.add(row)

    def progress(self, site: str, steps: int, patches: int) -> None:
        """A site has done so many steps of the open round; raises if the run is not ours any more."""
        if not self.pace.due(site, steps):
            return
        speed = self.pace.steps_per_second(site)
        report = {
            "round": self.round + 1,
            "steps": steps,
            "steps_per_second": speed,
            "patches_per_second": speed * patches if speed else None,
            "at": now().isoformat(),
        }
        with writing_session(self.engine) as session:
            self.mine(session)
            row = session.get(RunSiteRow, (self.run, site))
            if row is not None:
                row.progress = report

    def event(self, kind: str, text: str, round: int | None = None, site: str | None = None) -> None:
        """Tell of something that happened."""
        with writing_session(self.engine) as session:
            self.note(session, kind, text, round, site)

    def note(
        self, session: Session, kind: str, text: str, round: int | None = None, site: str | None = None
    ) -> None:
        """The same as part of a transaction."""
        session.add(EventRow(at=now(), kind=kind, text=text, run=self.run, round=round, site=site))


class Pace:
    """When the sites took their steps in the open round."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # sites that meet layer by layer train in threads
        self.began = time.monotonic()
        self.told: dict[str, float] = {}  # when each site was told of last
        self.steps: dict[str, list[tuple[float, int]]] = {}

    def due(self, site: str, steps: int) -> bool:
        """Take a step down; whether it is time to tell of it."""
        with self.lock:
            moment = time.monotonic()
            self.steps.setdefault(site, []).append((moment, steps))
            if moment - self.told.get(site, -math.inf) < PROGRESS_EVERY:
                return False
            self.told[site] = moment
            return True

    def steps_per_second(self, site: str) -> float | None:
        """Over the round so far."""
        (first, a), (last, b) = self.steps[site][0], self.steps[site][-1]
        return (b - a) / (last - first) if last > first else None

    def seconds(self, site: str) -> float | None:
        """From the first step's end to the last one's, with the first step as long as the others."""
        taken = self.steps.get(site)
        if not taken or len(taken) < 2:
            return None
        return (taken[-1][0] - taken[0][0]) * len(taken) / (len(taken) - 1)


def headline_of(test: Mapping[str, Any]) -> dict[str, Any]:
    """The three metrics of a record, and how many test patches are behind them, where that was told."""
    return {name: test[name] for name in HEADLINES} | {"n": test.get("n")}


def means(found: Drift | None) -> dict[str, Any]:
    """The drift of each site as one number a kind."""
    if found is None:
        return {"statistics": {}, "gradient": {}}
    kinds = {"statistics": found.statistics, "gradient": found.gradient}
    return {kind: {site: mean_of(values) for site, values in by_site.items()} for kind, by_site in kinds.items()}


def score_parts(evaluation: Evaluation) -> list[bytes | memoryview]:
    """Labels and scores as safetensors: pooled in the order of the sites, and nothing of the patches."""
    pooled = evaluation.pooled
    tensors = {"labels": torch.from_numpy(pooled.labels), "scores": torch.from_numpy(pooled.scores)}
    return tensor_parts(tensors, {"content": "test scores"})


def data_key(identity: Mapping[str, Any]) -> str:
    """Equal for runs on the same data."""
    return hashlib.sha256(canonical(identity["data"])).hexdigest()[:16]
