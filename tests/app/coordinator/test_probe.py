"""A service that cannot write says so where it is watched, and still lets people look."""

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, text

from app.coordinator import probe as probing
from app.coordinator.db import migrate, open_database, writing_session
from app.coordinator.probe import Probe
from app.coordinator.tokens import Doorkeeper, new_token


@pytest.fixture
def database(tmp_path: Path) -> Engine:
    engine = open_database(f"sqlite:///{tmp_path / 'probe.db'}")
    migrate(engine)
    return engine


def freeze(engine: Engine) -> None:
    """From now on the database refuses to write."""
    engine.dispose()

    @event.listens_for(engine, "connect")
    def read_only(connection: object, record: object) -> None:
        connection.execute("PRAGMA query_only=ON")  # type: ignore[attr-defined]


def test_a_database_that_takes_no_writes_is_told(database: Engine, tmp_path: Path) -> None:
    assert Probe(database, tmp_path).problems() == ()
    freeze(database)
    assert Probe(database, tmp_path).problems() == ("the database cannot be written to",)


def test_a_database_that_fails_at_the_write_itself_is_told(database: Engine, tmp_path: Path) -> None:
    with writing_session(database) as session:
        refusal = "BEFORE UPDATE ON audit_head BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        session.execute(text(f"CREATE TRIGGER full {refusal}"))
    assert Probe(database, tmp_path).problems() == ("the database cannot be written to",)


def test_a_full_disk_is_told(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "ROOM", 2**62)
    assert Probe(database, tmp_path).problems() == ("the home folder's disk is full",)


def test_those_who_ask_often_do_not_make_it_write_often(
    database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, tries = Probe(database, tmp_path), []
    monkeypatch.setattr(probe, "database", lambda: tries.append(1))
    monkeypatch.setattr(probing, "AGAIN", 3600.0)
    for _ in range(5):
        probe.problems()
    assert len(tries) == 1


def test_a_token_is_admitted_where_its_use_cannot_be_written_down(
    database: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with writing_session(database) as session:
        _, secret = new_token(session, "reader", "viewer", None, timedelta(days=1))
    freeze(database)
    assert Doorkeeper(database).admit(secret, "127.0.0.1").name == "reader"
    assert "last use" in caplog.text
