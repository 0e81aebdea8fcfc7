"""A round's commit stopped before any of its steps: the round is there as a whole, or the one before is."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from app.coordinator import audit, views
from app.coordinator.configuration import plan_of
from app.coordinator.db import (
    AuditRow,
    EventRow,
    RoundRow,
    RunRow,
    RunSiteRow,
    migrate,
    now,
    open_database,
    writing_session,
)
from app.coordinator.engines.sites import SiteLedger
from app.coordinator.ledger import Interrupted, Pace, RunLedger
from app.coordinator.tokens import Principal
from app.federation.terms import Terms
from app.schemas.runs import RunSettings
from fl_core.checkpoint import Checkpoint
from fl_core.rounds import Moment
from fl_core.state import ServerState, SiteState
from fl_core.wire import pack

RECORD = {"loss": 1.0, "rate": 0.1, "seconds": 1.0, "test": None, "sites": {"a": {"loss": 1.0, "steps": 2}}}
IDENTITY = {"plan": {}, "data": {"a": "x"}}


class Stopped(BaseException):
    """The process ends here."""


def state(number: int) -> tuple[ServerState, dict[str, SiteState]]:
    value = torch.full((64,), float(number))
    return ServerState(number, {"w": value}), {"a": SiteState(batches=number, c={"w": value})}


def commit(ledger: RunLedger, number: int) -> None:
    server, sites = state(number)
    record = {**RECORD, "round": number}
    ledger.commit(Checkpoint(server, sites, record, IDENTITY), Moment(server, sites, record, None, ()))


def new_ledger(folder: Path, epoch: int = 1) -> RunLedger:
    engine = open_database(f"sqlite:///{folder / 'run.db'}")
    migrate(engine)
    with writing_session(engine) as session:
        if session.get(RunRow, "r") is None:
            asked = RunSettings(rounds=9).model_dump(mode="json")
            session.add(
                RunRow(
                    id="r", number=1, name="r", state="running", settings=asked, created_at=now(),
                    created_by="admin", round=0, epoch=epoch,
                )
            )  # fmt: skip
    return RunLedger(engine, "r", epoch, folder / "files")


def count_steps(monkeypatch: pytest.MonkeyPatch, ledger: RunLedger, stop_at: int) -> Callable[[], int]:
    """Stop before the step of that number; steps are what touches disk or database."""
    taken = 0

    def before_step() -> None:
        nonlocal taken
        taken += 1
        if taken == stop_at:
            raise Stopped

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            before_step()
            return function(*words, **named)

        return call

    for name in ("replace", "unlink", "mkdir"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    for moment in ("commit", "before_cursor_execute"):
        event.listen(ledger.engine, moment, lambda *_: before_step())
    return lambda: taken


def test_a_commit_stopped_at_any_step_is_whole_or_not_there(tmp_path: Path) -> None:
    seen = set()
    for stop_at in range(1, 200):
        folder = tmp_path / str(stop_at)
        folder.mkdir()
        ledger = new_ledger(folder)
        commit(ledger, 1)
        with pytest.MonkeyPatch.context() as patch:
            taken = count_steps(patch, ledger, stop_at)
            with contextlib.suppress(Stopped):
                commit(ledger, 2)
            finished = taken() < stop_at
        seen.add(check_whole(folder))
        if finished:
            break
    assert finished
    assert taken() > 12
    assert seen == {1, 2}


def check_whole(folder: Path) -> int:
    """The last round after a restart, which can go on from it."""
    again = new_ledger(folder)
    found = again.latest()
    assert found is not None
    number = found.server.round
    server, sites = state(number)
    assert pack(found.server) == pack(server)
    assert pack(found.sites["a"]) == pack(sites["a"])
    with Session(again.engine) as session:
        assert session.get_one(RunRow, "r").round == number
        assert list(session.scalars(select(RoundRow.number))) == list(range(1, number + 1))
    commit(again, number + 1)
    return number


def test_an_older_worker_cannot_commit(tmp_path: Path) -> None:
    old = new_ledger(tmp_path)
    commit(old, 1)
    with writing_session(old.engine) as session:
        session.get_one(RunRow, "r").epoch = 2
    with pytest.raises(Interrupted):
        commit(old, 2)
    assert old.order() == "stop"
    newer = RunLedger(old.engine, "r", 2, old.folder)
    latest = newer.latest()
    assert latest is not None
    assert latest.server.round == 1
    commit(newer, 2)


@pytest.mark.parametrize("number", [1, 3])
def test_a_round_out_of_turn_is_refused(tmp_path: Path, number: int) -> None:
    ledger = new_ledger(tmp_path)
    commit(ledger, 1)
    with pytest.raises(Interrupted, match="after 1"):
        commit(ledger, number)


def test_rounds_of_before_losses_had_intervals_are_read(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    commit(ledger, 1)
    who = Principal("1", "reader", "viewer", None, now())
    with Session(ledger.engine) as session:
        session.add(RunSiteRow(run="r", site="a", position=0, facts={}))
        curves, [only] = views.metrics(session, who, "r", 0, 10), views.rounds(session, who, "r", None, 10).items
    for part in (curves, curves.sites["a"]):
        assert (part.loss, part.loss_low, part.loss_high, part.loss_n) == ((1.0,), (None,), (None,), (None,))
    assert (only.loss, only.loss_low, only.loss_n, only.sites[0].loss_high) == (1.0, None, None, None)


def test_old_states_are_cleared_away(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    for number in range(1, 6):
        commit(ledger, number)
    assert len(list((tmp_path / "files" / "objects").iterdir())) == 4  # two rounds of a server and a site


def test_each_site_is_told_of_as_often_as_any_other() -> None:
    pace = Pace()
    assert [pace.due(site, 1) for site in ("a", "b", "a", "b")] == [True, True, False, False]


def test_a_refused_site_is_in_events_and_audit_trail(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    key = audit.first_key(ledger.engine, tmp_path)
    with writing_session(ledger.engine) as session:
        audit.begin(session, key)
    told = SiteLedger(ledger, Terms("r", plan_of(RunSettings(rounds=9)), ("a", "b"), quorum=1), key)
    told.event("site-refused", "round 1 without b: its scores are not as agreed", "b")
    told.event("site-late", "round 1 without a: late", "a")
    with Session(ledger.engine) as session:
        [entry] = session.scalars(select(AuditRow))
        events = [(row.kind, row.site) for row in session.scalars(select(EventRow))]
        assert (entry.actor, entry.action, entry.subject) == ("engine", "update.refuse", "b")
        assert "not as agreed" in entry.detail
        assert audit.verify(session, key).intact
    assert events == [("site-refused", "b"), ("site-late", "a")]
