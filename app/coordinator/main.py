"""Settings → the coordinator's service, wired; its life begins and ends here."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import DBAPIError

from app.client import API
from app.coordinator import problems
from app.coordinator.audit import first_key
from app.coordinator.bounded import Bounded
from app.coordinator.db import migrate, open_database
from app.coordinator.deps import REFUSALS
from app.coordinator.exporter import Exporter
from app.coordinator.kept import KeptAnswers
from app.coordinator.newest import Newest
from app.coordinator.probe import Probe
from app.coordinator.routes import access, health, models, results, runs, sites, tables
from app.coordinator.service import Service
from app.coordinator.supervisor import Supervisor
from app.coordinator.tokens import Doorkeeper, admin_token
from app.secured import Secured
from app.settings import Settings
from mammofed import __version__
from mammofed.errors import BadSetting
from mammofed.files import held, writing

if TYPE_CHECKING:
    from app.coordinator.hospitals import Hospitals

log = logging.getLogger(__name__)
COORDINATOR = 742_002  # number of the lock by which a coordinator holds a PostgreSQL database
LET_GO = 5.0  # seconds in which PostgreSQL notices that the coordinator before was killed


def create_app(service: Service) -> FastAPI:
    """The service, ready to be run."""
    settings = service.settings
    app = FastAPI(
        title="mammofed coordinator",
        version=__version__,
        summary="Federated training of mammography models: rounds, sites, results.",
        lifespan=life(service),
        openapi_url=f"{API}/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses=REFUSALS,
    )
    problems.install(app)
    for part in (runs, results, models, sites, tables, access):
        app.include_router(part.router, prefix=API)
    app.include_router(health.router)
    app.add_middleware(Bounded)
    app.add_middleware(Secured)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    return app


def life(service: Service) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """What happens before the first request and after the last."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = service
        service.supervisor.start()
        hospitals = hospitals_of(service)
        watching = asyncio.create_task(service.newest.watch())
        yield
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        service.exporter.stop()
        service.supervisor.stop()
        if hospitals is not None:
            hospitals.stop()
        service.engine.dispose()

    return lifespan


def hospitals_of(service: Service) -> "Hospitals | None":
    """The federation, where there is one; the engine is imported for it alone, since that takes seconds."""
    if service.settings.federation is None:
        return None
    from app.coordinator.hospitals import Hospitals

    return Hospitals(service.settings.federation, service.engine)


@contextmanager
def opened(settings: Settings) -> Iterator[Service]:
    """The home folder held against a second coordinator, the database up to date, a token to sign in with made."""
    with writing(settings.home):
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = open_database(settings.database_url)
    with held(settings.home, "coordinator"), database_held(engine):
        with usable(engine):
            migrate(engine)
            key = first_key(engine, settings.home)
            made = admin_token(engine, settings.home, key)
        if made is not None:
            log.info("the admin token is in %s", made)
        yield assembled(settings, engine, key)


@contextmanager
def usable(engine: Engine) -> Iterator[None]:
    """Say in one line that the database is not there, takes no writes, or is none."""
    try:
        yield
    except DBAPIError as error:
        where = engine.url.render_as_string(hide_password=True)
        raise BadSetting(f"the database {where} cannot be used: {error.orig}") from error


@contextmanager
def database_held(engine: Engine) -> Iterator[None]:
    """A PostgreSQL database held against a second coordinator, whatever its home; SQLite's lies in the home."""
    if engine.dialect.name != "postgresql":
        yield
        return
    with usable(engine):
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with connection:
        connection.detach()  # the lock is this connection's: it ends with it, however the process ends
        until = time.monotonic() + LET_GO
        while not connection.scalar(select(func.pg_try_advisory_lock(COORDINATOR))):
            if time.monotonic() > until:
                where = engine.url.render_as_string(hide_password=True)
                raise BadSetting(f"the database {where} is in use by another coordinator: end that one first")
            time.sleep(0.1)
        yield


def assembled(settings: Settings, engine: Engine, key: bytes) -> Service:
    """All that requests share."""
    supervisor = Supervisor(settings, engine)
    return Service(
        settings,
        engine,
        Doorkeeper(engine),
        supervisor,
        key,
        KeptAnswers(),
        Newest(engine),
        Probe(engine, settings.home),
        Exporter(supervisor.context),
    )
