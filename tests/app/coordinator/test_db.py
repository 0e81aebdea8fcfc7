"""The database: its migrations make the tables that the code speaks of, on both kinds."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.coordinator.db import Base, EventRow, migrate, now, open_database, writing_session
from app.coordinator.main import database_held, opened
from app.settings import Settings
from mammofed.errors import BadSetting
from mammofed.files import held
from tests.app.coordinator.services import running_postgresql


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_migrations_make_the_tables_of_the_code(tmp_path: Path, kind: str) -> None:
    with ExitStack() as stack:
        given = stack.enter_context(running_postgresql()) if kind == "postgresql" else ""
        engine = open_database(Settings(home=tmp_path, database_url=given).database_url)
        migrate(engine)
        migrate(engine)  # a second time changes nothing
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
        moment = now()
        with writing_session(engine) as session:
            session.add(EventRow(id=1, at=moment, kind="k", text="t"))
        with writing_session(engine) as session:
            assert session.get_one(EventRow, 1).at == moment
        engine.dispose()


def test_a_database_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    words = ["--home", str(tmp_path / "home"), "--database-url", "postgresql://me:secret@127.0.0.1:1/none"]
    done = subprocess.run([sys.executable, "-m", "app.cli", "coordinator", *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert "cannot be used" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "url", ["nonsense", "mysql://me:secret@here/it", "postgresql+psycopg://me:secret@here:x/it"]
)
def test_what_is_no_database_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(BadSetting, match="no database URL") as refusal:
        open_database(url)
    assert "secret" not in str(refusal.value)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mammofed.db").write_bytes(b"no database" * 1000)
    with pytest.raises(BadSetting, match="file is not a database"), opened(Settings(home=tmp_path)):
        pass


def test_the_database_of_a_later_version_is_refused(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'later.db'}")
    migrate(engine)
    with writing_session(engine) as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(BadSetting, match="not of this version"):
        migrate(engine)
    engine.dispose()


def test_an_error_does_not_tell_what_was_to_be_written(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(OperationalError) as error, writing_session(engine) as session:
        session.add(EventRow(at=now(), kind="k", text="MUELLER-1957"))
    assert "no such table" in str(error.value)
    assert "MUELLER-1957" not in str(error.value)
    engine.dispose()


def test_a_database_in_use_is_refused_and_free_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.coordinator.main.LET_GO", 0.1)
    with running_postgresql() as url:
        second = Settings(home=tmp_path, database_url=url)
        with (
            database_held(open_database(second.database_url)),
            pytest.raises(BadSetting, match="in use by another coordinator"),
            opened(second),
        ):
            pass
        with opened(second) as service:
            assert service.engine.dialect.name == "postgresql"
            service.engine.dispose()


def test_a_home_in_use_is_one_line(tmp_path: Path) -> None:
    with held(tmp_path, "coordinator"):
        words = [sys.executable, "-m", "app.cli", "coordinator", "--home", str(tmp_path), "--port", "0"]
        done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "in use by another coordinator" in done.stderr
    assert "Traceback" not in done.stderr
