"""A folder → a real coordinator process on loopback, and a real PostgreSQL, for as long as a test needs them."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import psutil
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine

from app.client import Coordinator
from app.coordinator.db import open_database
from app.schemas.access import NewToken
from app.schemas.runs import DataSettings, Run, RunSettings
from app.schemas.shape import Role
from app.settings import Settings

Found = TypeVar("Found")
STARTED = 120.0  # seconds within which a service answers, on a busy machine
DONE = 300.0  # seconds within which a small run is trained
SMALL = RunSettings(
    model="densenet-small",
    rounds=2,
    local_steps=2,
    batch=8,
    resamples=100,
    data=DataSettings(image_size=32, patches=100),
)


def wait_until(found: Callable[[], Found | None], what: str, seconds: float = DONE) -> Found:
    """What the function finds, as soon as it is something; a failure that names `what` when the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(0.05)
    pytest.fail(f"waited {seconds} s in vain for {what}")


@dataclass
class Service:
    """A coordinator that can be killed and started again."""

    home: Path
    environment: dict[str, str]
    url: str = ""
    process: subprocess.Popen[bytes] | None = None
    wanted_port: int = 0  # 0: any that is free

    def start(self) -> "Service":
        """Start the process on a free port, and wait until it is ready."""
        log = (self.home.parent / f"{self.home.name}.log").open("ab")
        where = ["--home", str(self.home), "--port", str(self.wanted_port)]
        words = [sys.executable, "-m", "app.cli", "coordinator", *where]
        with log:
            self.process = subprocess.Popen(
                words, env={**os.environ, **self.environment}, stderr=log, stdout=log, start_new_session=True
            )
        self.url = f"http://127.0.0.1:{wait_until(self.port, 'the port', STARTED)}"
        wait_until(self.is_ready, "the coordinator", STARTED)
        return self

    def port(self) -> int | None:
        """The port that the process listens on."""
        assert self.process is not None
        if self.process.poll() is not None:
            pytest.fail(f"the coordinator ended with {self.process.returncode}:\n{self.log()[-3000:]}")
        listening = psutil.Process(self.process.pid).net_connections("tcp")
        return next((c.laddr.port for c in listening if c.status == psutil.CONN_LISTEN), None)

    def is_ready(self) -> bool:
        """Whether it answers."""
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", trust_env=False).is_success
        return False

    def log(self) -> str:
        """All that it has written to its log."""
        return (self.home.parent / f"{self.home.name}.log").read_text()

    def secret(self) -> str:
        """The admin token."""
        return (self.home / "admin.token").read_text().strip()

    def client(self, secret: str | None = None) -> Coordinator:
        """A connection, as admin or with another token."""
        return Coordinator(self.url, secret or self.secret())

    def token(self, role: Role, site: str | None = None) -> str:
        """A new token of a role."""
        with self.client() as lead:
            return lead.create_token(NewToken(name=f"{role} {site or ''}".strip(), role=role, site=site)).secret

    @contextmanager
    def database(self) -> Iterator[Engine]:
        """The database that it works on."""
        given = Settings(home=self.home, database_url=self.environment.get("MAMMOFED_DATABASE_URL", ""))
        engine = open_database(given.database_url)
        yield engine
        engine.dispose()

    def children(self) -> list[psutil.Process]:
        """The processes below it."""
        assert self.process is not None
        found: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait until none of its processes is left."""
        if self.process is None or self.process.poll() is not None:
            return
        family = self.children()
        self.process.send_signal(how)
        self.process.wait(STARTED)
        _gone, alive = psutil.wait_procs(family, timeout=STARTED)
        assert not alive, f"processes outlive the coordinator: {alive}"


@contextmanager
def running_coordinator(home: Path, **environment: str) -> Iterator[Service]:
    """A coordinator on loopback; settings go by their names in the environment."""
    service = Service(home, environment)
    try:
        yield service.start()
    finally:
        service.stop()


def answer_of(app: FastAPI, method: str, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """What an app answers that nobody serves."""

    async def ask() -> httpx.Response:
        way = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=way, base_url="http://here") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(ask())


def trained(client: Coordinator, settings: RunSettings) -> Run:
    """A new run, trained to its end."""
    run = client.create(settings)
    client.act(run.id, "start")
    return ended(client, run.id)


def ended(client: Coordinator, run: str) -> Run:
    """The run, as soon as it has ended or stands still."""

    def look() -> Run | None:
        found = client.run(run)
        return found if found.state != "running" else None

    return wait_until(look, f"the end of run {run}")


def postgresql_programs() -> Path | None:
    """The folder of initdb and pg_ctl."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "pg_ctl").exists()), None)


@contextmanager
def running_postgresql() -> Iterator[str]:
    """A PostgreSQL server of its own, on a socket in a folder of its own; yields its URL."""
    programs = postgresql_programs()
    if programs is None:
        if os.environ.get("CI"):
            pytest.fail("PostgreSQL is not installed")
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    as_whom = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    with tempfile.TemporaryDirectory(prefix="mammofed-postgresql-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if as_whom:
            shutil.chown(folder, as_whom)

        def program(*words: str) -> None:
            subprocess.run(words, check=True, user=as_whom, stdout=subprocess.DEVNULL, cwd=folder)

        data = str(folder / "data")
        program(str(programs / "initdb"), "-D", data, "-A", "trust", "-U", "mammofed", "--no-sync")
        options = f"-k {folder} -c listen_addresses='' -c unix_socket_permissions=0777"
        program(str(programs / "pg_ctl"), "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://mammofed@/postgres?host={folder}"
        finally:
            program(str(programs / "pg_ctl"), "-D", data, "-w", "-m", "immediate", "stop")
