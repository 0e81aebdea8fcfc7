"""The supervisor's own nerves: what its workers and their forkserver do must not end it, nor blame a run."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.coordinator.db import EventRow, RunRow, migrate, now, open_database, writing_session
from app.coordinator.supervisor import DEATHS, Supervisor, Worker
from app.settings import Settings
from tests.app.coordinator.services import SMALL, wait_until


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor with one running run, whose thread has not begun."""
    settings = Settings(home=tmp_path, database_url=f"sqlite:///{tmp_path / 'runs.db'}")
    engine = open_database(settings.database_url)
    migrate(engine)
    with writing_session(engine) as session:
        row = RunRow(id="one", number=1, name="one", state="running", created_at=now(), created_by="admin")
        row.settings = SMALL.model_dump(mode="json")
        session.add(row)
    yield Supervisor(settings, engine)
    engine.dispose()


def run_of(supervisor: Supervisor) -> RunRow:
    with Session(supervisor.engine) as session:
        return session.get_one(RunRow, "one")


def ended_worker(code: int) -> Worker:
    """A worker that has left with that code."""
    process: Any = SimpleNamespace(exitcode=code, terminate=lambda: None, join=lambda: None)
    line: Any = SimpleNamespace(close=lambda: None)
    return Worker(process, line, began_at=0)


@pytest.mark.parametrize("error", [EOFError(), BrokenPipeError(), ConnectionRefusedError()])
def test_a_forkserver_that_dies_puts_the_run_off(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def start(process: object) -> None:
        raise error

    monkeypatch.setattr(supervisor.context.Process, "start", start)
    for _ in range(DEATHS + 1):
        supervisor.deaths.clear()  # the rest between two tries is over
        supervisor.look()
    assert run_of(supervisor).state == "running"
    assert "no worker can be started" in str(run_of(supervisor).waiting)
    assert supervisor.workers == {}


def test_the_thread_outlives_what_nobody_thought_of(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def look() -> None:
        looks.append(1)
        raise RuntimeError("not thought of")

    monkeypatch.setattr(supervisor, "look", look)
    supervisor.thread.start()
    wait_until(lambda: len(looks) >= 3, "the third look", seconds=30)
    supervisor.stop()


@pytest.mark.parametrize("code", [os.EX_OK, os.EX_TEMPFAIL])
def test_a_worker_that_left_without_fault_is_no_death(supervisor: Supervisor, code: int) -> None:
    for _ in range(DEATHS + 1):
        supervisor.workers["one"] = ended_worker(code)
        supervisor.bury("one", run_of(supervisor))
    assert supervisor.deaths["one"].count == 0
    assert events(supervisor) == []


def test_a_worker_that_keeps_dying_fails_its_run(supervisor: Supervisor) -> None:
    for _ in range(DEATHS):
        supervisor.workers["one"] = ended_worker(-9)
        supervisor.bury("one", run_of(supervisor))
    assert run_of(supervisor).state == "failed"
    assert len(events(supervisor)) == DEATHS


def events(supervisor: Supervisor) -> list[str]:
    with Session(supervisor.engine) as session:
        return list(session.scalars(select(EventRow.text)))
