"""NVFlare at the coordinator: a job for each segment of a run, and, in the job, a relay between worker and sites.

The worker submits a job through the admin session and waits for the job's relay to connect to its socket. From
then on it calls sites through the relay. The job holds nothing of value: when it dies, another is submitted.
"""

import io
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nvflare.collab import collab
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from app.federation.collect import carry_out
from app.federation.desk import Desk
from app.federation.line import Lines, open_port
from app.federation.link import EngineDown, JobFailed, Link, serve
from app.federation.processes import leave_with_parent
from app.federation.provision import ADMIN, read_federation

AGENT = "app.site.agent.Agent"
RELAY = "app.coordinator.engines.nvflare.Relay"
SYNC = 30  # seconds that the sites' processes have to start
START = 90.0  # seconds from a job's submission to its first call


class Relay:
    """The job's server side: carries calls from the worker to sites, hands out models, holds the meeting."""

    def __init__(self, address: str, offers: str, federation: str) -> None:
        self.address, self.federation = address, Path(federation)
        self.desk = Desk(Path(offers))
        leave_with_parent()

    @collab.main  # type: ignore[untyped-decorator]
    def main(self) -> None:
        """Serve the worker until it hangs up."""
        sites = {proxy.name: proxy for proxy in collab.clients}

        def call(site: str, order: str, text: str, timeout: float) -> bytes:
            if not site:
                return carry_out(self.desk, call, lines.ask, order, json.loads(text))
            # optional: a way that does not exist is told at once, and any failure is None
            answer = sites[site](timeout=timeout, optional=True).take(order, text)
            if answer is None:
                raise TimeoutError(f"{site} did not answer in {timeout:g} s, or cannot be reached")
            return answer if isinstance(answer, bytes) else b""  # which the worker refuses

        with closing(self.lines(sites)) as lines, socket.socket(socket.AF_UNIX) as end:
            for proxy in sites.values():
                proxy(expect_result=False, optional=True).dial(lines.port, lines.word.hex())
            end.connect(self.address)
            serve(end, call)
        self.desk.close()

    def lines(self, sites: Collection[str]) -> Lines:
        """The short way to the sites."""
        known = read_federation(self.federation)
        listener = open_port(known.host, known.port)
        startup = self.federation / "server" / "startup"
        return Lines(listener, startup, sites, lambda question: self.desk.fetch(**json.loads(question)))

    @collab.publish  # type: ignore[untyped-decorator]
    def fetch(self, digest: str, offset: int, size: int) -> memoryview:
        """A part of the model on offer."""
        return self.desk.fetch(digest, offset, size)

    @collab.publish  # type: ignore[untyped-decorator]
    def meet(self, key: str, values: bytes, kind: str, weight: int) -> tuple[bytes, int]:
        """One site's values for the mean over all, in the name of the site that the certificate says."""
        return self.desk.meet(collab.caller, key, values, kind, weight)


Result = TypeVar("Result")


class Admin:
    """The coordinator's own connection to the engine's server: opened when needed, and again after a failure."""

    def __init__(self, federation: Path) -> None:
        self.federation, self.kit = federation, federation / "admin"
        self.session: Session | None = None
        self.lock = threading.Lock()

    def do(self, work: Callable[[Session], Result]) -> Result:
        """Use the connection; whatever goes wrong with it means that the engine is down."""
        with self.lock:
            try:
                if self.session is None:
                    with redirect_stdout(io.StringIO()):  # it prints
                        self.session = new_secure_session(
                            ADMIN, str(self.kit), timeout=5.0, auto_login_max_tries=1
                        )
                return work(self.session)
            except Exception as error:
                self.hang_up()
                raise EngineDown(f"the engine's server does not answer ({type(error).__name__})") from error

    def hang_up(self) -> None:
        """Close the connection: unclosed it would keep Python alive."""
        session, self.session = self.session, None
        if session is not None:
            with suppress(Exception):
                session.close()

    def close(self) -> None:
        """Use it no more."""
        with self.lock:
            self.hang_up()

    def connected(self) -> frozenset[str]:
        """The sites that are connected now."""
        return self.do(lambda session: frozenset(client.name for client in session.get_connected_client_list()))

    def shut_out(self, site: str) -> None:
        """Refuse a site from now on."""
        self.do(lambda session: session.disable_client(site))

    def clear_jobs(self, run: str) -> None:
        """Delete the run's jobs that are over; one that its server's crash left running for ever cannot be."""

        def work(session: Session) -> None:
            for job in session.list_jobs(name_prefix=run):
                if job["job_name"] == run and job["status"].startswith("FINISHED"):
                    session.delete_job(job["job_id"])

        with suppress(EngineDown):  # they are in nobody's way
            self.do(work)

    def has_ended(self, job: str) -> bool:
        """Whether a job is over."""
        return (self.do(lambda session: session.get_job_status(job)) or "").startswith("FINISHED")


@dataclass(frozen=True)
class NVFlare:
    """The engine of one run."""

    admin: Admin
    run: str
    folder: Path  # the run's, where models are on offer
    agent: str = AGENT  # the class that takes orders at the sites, which must allow it

    def connected(self) -> frozenset[str]:
        """The sites that are connected now."""
        return self.admin.connected()

    @contextmanager
    def segment(self, sites: tuple[str, ...]) -> Iterator[Link]:
        """Submit a job with these sites, and take its relay's call."""
        with tempfile.TemporaryDirectory(prefix="mammofed-") as scratch:
            address, job_folder = str(Path(scratch) / "relay"), Path(scratch) / "job"
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen(1)
                write_job(job_folder, self, sites, address)
                self.admin.clear_jobs(self.run)
                job = self.admin.do(lambda session: session.submit_job(str(job_folder)))
                link = self.taken_call(listener, job)
            try:
                yield link
            finally:
                link.close()  # and the job ends; a site's next job does not wait for that

    def taken_call(self, listener: socket.socket, job: str) -> Link:
        """Wait for the relay to connect; a job that ends before is given up."""
        until = time.monotonic() + START
        listener.settimeout(1.0)
        while time.monotonic() < until:
            try:
                return Link(listener.accept()[0])
            except TimeoutError:
                if self.admin.has_ended(job):
                    raise JobFailed("the engine's job ended before it began") from None
        self.abort(job)
        raise JobFailed(f"the engine's job did not begin within {START:g} s")

    def abort(self, job: str) -> None:
        """End a job; one that the server has forgotten cannot be ended, and does no harm."""
        with suppress(EngineDown):
            self.admin.do(lambda session: session.abort_job(job))


def write_job(folder: Path, engine: NVFlare, sites: tuple[str, ...], address: str) -> None:
    """NVFlare's job: which class runs where; code does not travel, each side has mammofed installed."""
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    threads = {"max_inbound_call_threads": 128, "max_outbound_call_threads": 128}
    folders = {"offers": str(engine.folder / "offers"), "federation": str(engine.admin.federation.absolute())}
    relay = {"id": "relay", "path": RELAY, "args": {"address": address, **folders}}
    controller = {
        "id": "controller",
        "path": "nvflare.collab.runtime.controller.CollabController",
        "args": {"server_obj_id": "relay", "sync_task_timeout": SYNC, **threads},
    }
    executor = {
        "path": "nvflare.collab.runtime.executor.CollabExecutor",
        "args": {"client_obj_id": "agent", **threads},
    }
    written = {
        folder / "meta.json": {
            "name": engine.run,
            "resource_spec": {},
            "min_clients": len(sites),
            "deploy_map": {"app": ["server", *sites]},
        },
        config / "config_fed_server.json": {"format_version": 2, "workflows": [controller], "components": [relay]},
        config / "config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": [{"id": "agent", "path": engine.agent, "args": {"run": engine.run}}],
        },
    }
    for path, content in written.items():
        path.write_text(json.dumps(content))
