"""The audit trail on a real database: it cannot be changed, and what is changed all the same is found."""

import sqlite3
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from app.coordinator.audit import audit_key, begin, first_key, record, verify
from app.coordinator.db import migrate, open_database, writing_session
from mammofed.errors import BadSetting

TAMPERING = {  # and the entry at which the chain then breaks
    "an entry changed": ("UPDATE audit SET actor = 'nobody' WHERE id = 2", 2),
    "an entry's detail changed": ("UPDATE audit SET detail = '{}' WHERE id = 2", 2),
    "an entry's seal changed": ("UPDATE audit SET hash = 'another' WHERE id = 2", 2),
    "an entry deleted": ("DELETE FROM audit WHERE id = 2", 2),
    "the first deleted": ("DELETE FROM audit WHERE id = 1", 1),
    "the end cut off": ("DELETE FROM audit WHERE id = 4", 4),
    "two entries swapped": (
        "UPDATE audit SET id = CASE id WHEN 2 THEN -3 ELSE -2 END WHERE id IN (2, 3);"
        "UPDATE audit SET id = -id WHERE id < 0",
        2,
    ),
    "the end cut off, and the head set back": (
        "DELETE FROM audit WHERE id = 4;UPDATE audit_head SET entries = 3",
        4,
    ),
    "the end cut off, and the head made from what is left": (
        "DELETE FROM audit WHERE id = 4;"
        "UPDATE audit_head SET entries = 3, hash = (SELECT hash FROM audit WHERE id = 3)",
        4,
    ),
    "all forgotten": ("DELETE FROM audit; UPDATE audit_head SET entries = 0", 1),
    "all forgotten, and the head that of an empty chain": (
        "DELETE FROM audit;UPDATE audit_head SET entries = 0, hash = ''",
        1,
    ),
}


@pytest.fixture
def trail(tmp_path: Path) -> Engine:
    engine = open_database(f"sqlite:///{tmp_path / 'trail.db'}")
    migrate(engine)
    key = first_key(engine, tmp_path)
    for number in range(4):
        with writing_session(engine) as session:
            if number == 0:
                begin(session, key)
            record(session, key, "admin", "run.create", f"run {number}", number=number)
    return engine


def tamper(folder: Path, how: str) -> None:
    database = sqlite3.connect(folder / "trail.db")
    database.executescript("DROP TRIGGER audit_keeps_UPDATE; DROP TRIGGER audit_keeps_DELETE")
    database.executescript(TAMPERING[how][0])
    database.close()


def test_an_untouched_trail_holds(trail: Engine, tmp_path: Path) -> None:
    with Session(trail) as session:
        found = verify(session, audit_key(tmp_path))
    assert (found.intact, found.entries) == (True, 4)


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_is_found_where_it_was_done(trail: Engine, tmp_path: Path, how: str) -> None:
    tamper(tmp_path, how)
    with Session(trail) as session:
        found = verify(session, audit_key(tmp_path))
    assert not found.intact
    assert found.broken_at == TAMPERING[how][1]
    assert found.why


@pytest.mark.parametrize("how", [how for how in TAMPERING if "head" in how])
def test_entries_written_after_it_do_not_cover_tampering(trail: Engine, tmp_path: Path, how: str) -> None:
    tamper(tmp_path, how)
    for number in range(4):
        with writing_session(trail) as session:
            record(session, audit_key(tmp_path), "admin", "run.create", f"run {number}")
    with Session(trail) as session:
        assert not verify(session, audit_key(tmp_path)).intact


@pytest.mark.parametrize("how", ["an entry changed", "an entry deleted"])
def test_the_database_refuses_to_change_the_trail(trail: Engine, tmp_path: Path, how: str) -> None:
    database = sqlite3.connect(tmp_path / "trail.db")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        database.executescript(TAMPERING[how][0])
    database.close()


def test_an_empty_trail_does_not_hold_even_under_its_own_head(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'trail.db'}")
    migrate(engine)
    key = first_key(engine, tmp_path)
    with writing_session(engine) as session:
        begin(session, key)
    with Session(engine) as session:
        assert not verify(session, key).intact
    engine.dispose()


def test_a_trail_sealed_with_another_key_does_not_hold(trail: Engine) -> None:
    with Session(trail) as session:
        assert not verify(session, b"another key of thirty-two bytes!").intact


def test_a_failed_transaction_leaves_no_entry(trail: Engine, tmp_path: Path) -> None:
    with suppress(RuntimeError), writing_session(trail) as session:
        record(session, audit_key(tmp_path), "admin", "run.create", "run 5")
        raise RuntimeError
    with Session(trail) as session:
        assert verify(session, audit_key(tmp_path)).entries == 4


def test_a_damaged_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "audit.key").write_bytes(b"short")
    with pytest.raises(BadSetting, match="32 are needed"):
        audit_key(tmp_path)


def test_the_key_is_made_once_for_its_owner_alone(trail: Engine, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "audit.key").stat().st_mode) == 0o600
    assert first_key(trail, tmp_path) == audit_key(tmp_path) == first_key(trail, tmp_path)
    assert [path.name for path in tmp_path.glob("*audit.key*")] == ["audit.key"]


def test_a_missing_key_is_not_replaced_where_entries_stand(trail: Engine, tmp_path: Path) -> None:
    (tmp_path / "audit.key").unlink()
    with pytest.raises(BadSetting, match="put it back"):
        first_key(trail, tmp_path)
    assert not (tmp_path / "audit.key").exists()
