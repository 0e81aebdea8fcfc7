"""A URL → the coordinator's database: tables, sessions, and its migrations; SQLite or PostgreSQL."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from psycopg.errors import ReadOnlySqlTransaction
from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    DateTime,
    Engine,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    TypeDecorator,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.engine import Dialect, ExceptionContext
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from mammofed.errors import BadSetting

BUSY = 30_000  # ms that SQLite waits for another writer
COUNTER = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts INTEGER keys only


class UtcTime(TypeDecorator[datetime]):
    """A moment in UTC; SQLite keeps no zone, so it is put back on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """With its zone."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class Base(DeclarativeBase):
    """All tables."""

    type_annotation_map = {dict[str, Any]: JSON, datetime: UtcTime, str: Text}  # noqa: RUF012


class RunRow(Base):
    """A run: what was asked for, how it stands, and who may commit its rounds."""

    __tablename__ = "runs"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    number: Mapped[int] = mapped_column(COUNTER, unique=True)  # order of creation
    name: Mapped[str]
    state: Mapped[str] = mapped_column(String(16), index=True)
    settings: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    reason: Mapped[str | None]
    waiting: Mapped[str | None]
    round: Mapped[int] = mapped_column(default=0)
    until: Mapped[int | None]  # the round after which it pauses
    epoch: Mapped[int] = mapped_column(default=0)  # of the worker that may commit: fences off older ones
    data_key: Mapped[str | None]
    identity: Mapped[dict[str, Any] | None]
    best_round: Mapped[int | None]
    best_value: Mapped[float | None]
    best: Mapped[dict[str, Any] | None]  # headline of the best round, with the names of its states and scores
    latest: Mapped[dict[str, Any] | None]  # headline of the last evaluated round, likewise
    request_key: Mapped[str | None] = mapped_column(String(300), unique=True)
    request_digest: Mapped[str | None] = mapped_column(String(64))


class RoundRow(Base):
    """A committed round: its record, and the names of its states on disk."""

    __tablename__ = "rounds"
    run: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    committed_at: Mapped[datetime]
    record: Mapped[dict[str, Any]]
    states: Mapped[dict[str, Any]]
    drift: Mapped[dict[str, Any]]  # mean over the layers, by site


class DriftRow(Base):
    """A round's drift layer by layer; apart, so that listing rounds does not read it."""

    __tablename__ = "drifts"
    run: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    layers: Mapped[dict[str, Any]]


class RunSiteRow(Base):
    """A site of a run: what is known of its data, and how far it is."""

    __tablename__ = "run_sites"
    run: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    site: Mapped[str] = mapped_column(String(64), primary_key=True)
    position: Mapped[int]
    facts: Mapped[dict[str, Any]]
    progress: Mapped[dict[str, Any] | None]


class SiteRow(Base):
    """An enrolled site."""

    __tablename__ = "sites"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    condition: Mapped[str] = mapped_column(String(16))
    enrolled_at: Mapped[datetime]
    last_seen: Mapped[datetime | None]
    certificate_expires: Mapped[datetime | None]


class TokenRow(Base):
    """A bearer token, hashed."""

    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str]
    role: Mapped[str] = mapped_column(String(16))
    site: Mapped[str | None] = mapped_column(String(64))
    digest: Mapped[str] = mapped_column(String(64))
    one_time: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    last_used: Mapped[datetime | None]


class EventRow(Base):
    """Something that happened."""

    __tablename__ = "events"
    __table_args__ = (Index("events_of_a_run", "run", "id"), {"sqlite_autoincrement": True})
    id: Mapped[int] = mapped_column(COUNTER, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(32))
    text: Mapped[str]
    run: Mapped[str | None] = mapped_column(String(32))
    round: Mapped[int | None]
    site: Mapped[str | None] = mapped_column(String(64))


class AuditRow(Base):
    """A link of the audit chain; triggers refuse to change or delete it."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(COUNTER, primary_key=True, autoincrement=False)
    at: Mapped[str] = mapped_column(String(40))  # as sealed, to the letter
    actor: Mapped[str]
    action: Mapped[str] = mapped_column(String(64))
    subject: Mapped[str]
    detail: Mapped[str]  # JSON, as sealed
    hash: Mapped[str] = mapped_column(String(64))


class AuditHead(Base):
    """The end of the audit chain, sealed: a chain cut short does not match it."""

    __tablename__ = "audit_head"
    id: Mapped[int] = mapped_column(primary_key=True)
    entries: Mapped[int] = mapped_column(COUNTER)
    hash: Mapped[str] = mapped_column(String(64))


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)


def _open_postgresql(url: str) -> Engine:
    """PostgreSQL that refuses to write, as after a failover, counts as away for a while: it is tried again."""
    engine = create_engine(url, pool_pre_ping=True, pool_size=8, max_overflow=16, hide_parameters=True)

    @event.listens_for(engine, "handle_error")
    def read_only(context: ExceptionContext) -> None:
        if isinstance(context.original_exception, ReadOnlySqlTransaction):
            raise OperationalError(context.statement, context.parameters, context.original_exception)

    return engine


def _open_sqlite(url: str) -> Engine:
    """SQLite in WAL mode, each commit on disk, foreign keys on."""
    waiting = {"timeout": BUSY / 1000}
    engine = create_engine(url, pool_size=8, max_overflow=16, hide_parameters=True, connect_args=waiting)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: object) -> None:
        connection.isolation_level = None  # transactions begin where `begin` below says
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={BUSY}"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # a writer takes its place at once: a reader that turns writer later can be refused
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


OPENERS = {"sqlite": _open_sqlite, "postgresql+psycopg": _open_postgresql}


def open_database(url: str) -> Engine:
    """An engine for the URL, whose words about an error do not tell the values that it was given."""
    try:
        return OPENERS[make_url(url).drivername](url)
    except (ArgumentError, KeyError, ValueError) as error:
        raise BadSetting(
            "this is no database URL: give postgresql://USER@HOST/NAME, or none for SQLite"
        ) from error


@contextmanager
def writing_session(engine: Engine) -> Iterator[Session]:
    """One transaction that writes: committed as a whole at the end, or not at all."""
    with Session(engine.execution_options(writes=True), expire_on_commit=False) as session, session.begin():
        yield session


def migrate(engine: Engine) -> None:
    """Bring the database to the newest version; a fresh one is made."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(742001)"))
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise BadSetting(f"the database is not of this version of mammofed ({error}): use its own") from error
