"""A round over NVFlare without local work → the ratio of its time to a bare transfer of its bytes over TLS, and
the memory that it takes at the coordinator."""

import json
import shutil
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from app.coordinator.engines.nvflare import AGENT, Admin, NVFlare
from app.federation.field import Field
from app.federation.link import EngineDown, Link
from app.federation.processes import client_command, server_command, start, stop
from app.federation.provision import Federation, create
from app.federation.remote import one_round
from app.federation.standing import Standing, standing_of
from app.federation.terms import Terms
from app.processes import free_port
from app.site.data import SiteSettings, write_settings
from app.site.home import HOME
from app.site.kit import unpack_kit
from benchmarks.ratio import Ratio, seconds
from fl_core.local import first_state, workplace
from fl_core.models import build_model
from fl_core.plan import Plan
from fl_core.roles import Roles
from fl_core.schedule import Schedule
from fl_core.state import ServerState
from fl_core.wire import pack
from tests.app.coordinator.services import wait_until

ECHO = "benchmarks.echo.EchoAgent"
REPEATS = 12  # the machine is quiet in some of them
COUNTS = (2, 8)  # sites
BLOCK = 1 << 20  # bytes written at a time


@contextmanager
def running(folder: Path, count: int) -> Iterator[tuple[Admin, tuple[str, ...], int]]:
    """A federation of processes with drawn data, each site with one thread."""
    sites = tuple(f"site-{number}" for number in range(1, count + 1))
    create(folder / "federation", Federation("bench", "localhost", free_port(), sites))
    processes = [start(server_command(folder / "federation" / "server"), folder / "server.log")]
    for number, site in enumerate(sites, 1):
        unpack_kit(folder / "federation" / "kits" / f"{site}.zip", folder / site)
        write_settings(folder / site, SiteSettings(site, f"synthetic:{number % 2 + 1}/2,patches=20,size=32"))
        allow(folder / site / "kit", ECHO)
        environment = {HOME: str(folder / site), "OMP_NUM_THREADS": "1"}
        processes.append(start(client_command(folder / site / "kit", site), folder / f"{site}.log", environment))
    admin = Admin(folder / "federation")
    try:
        wait_until(partial(are_connected, admin, sites), "the sites", 300.0)
        yield admin, sites, processes[0].pid
    finally:
        admin.close()
        for process in processes:
            stop(process, 1.0)


def allow(kit: Path, agent: str) -> None:
    """Let a site run the bench's agent too."""
    path = kit / "local" / "resources.json"
    policy = json.loads(path.read_text())
    policy["class_allow_list"].append(agent)
    path.write_text(json.dumps(policy))


def are_connected(admin: Admin, sites: tuple[str, ...]) -> bool:
    """Whether all sites are there."""
    try:
        return admin.connected() >= set(sites)
    except EngineDown:
        return False


def field_of(link: Link, folder: Path, plan: Plan, sites: tuple[str, ...]) -> Field:
    """How the sites are asked."""
    terms = Terms("bench", plan, sites, len(sites), silence=120.0)
    return Field(terms, link, folder, lambda site, told: None, lambda: None)


def bare_transfer(folder: Path, size: int) -> float:
    """Seconds to send so many bytes over one TLS connection of loopback, with the federation's certificates."""
    startup = folder / "federation" / "server" / "startup"
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(startup / "server.crt", startup / "server.key")
    client = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def sink() -> None:
            with server.wrap_socket(listener.accept()[0], server_side=True) as end:
                left = size
                while left:
                    left -= len(end.recv(min(BLOCK, left)))
                end.sendall(b"!")

        thread = threading.Thread(target=sink)
        thread.start()
        with client.wrap_socket(
            socket.create_connection(listener.getsockname()), server_hostname="localhost"
        ) as end:
            block = bytes(BLOCK)
            began = time.perf_counter()
            for sent in range(0, size, BLOCK):
                end.sendall(block[: min(BLOCK, size - sent)])
            end.recv(1)
            taken = time.perf_counter() - began
        thread.join()
    return taken


def overhead(count: int) -> tuple[Ratio, int]:
    """A round of DenseNet-121 without local work, against the same bytes over one connection; and its memory."""
    with prepared(count, ECHO, "fedavg") as (folder, one):
        size = 2 * count * len(pack(one.server))
        pairs = [(seconds(one.with_news(number)), bare_transfer(folder, size)) for number in range(REPEATS + 1)]
        most = one.peak()
    ours, bare = (min(column) for column in zip(*pairs[1:], strict=True))  # the first warms up
    detail = f"{ours:.2f} s against {bare:.2f} s for {size / 1e6:.0f} MB"
    name = f"round without local work over NVFlare, {count} sites / bare TLS"
    return Ratio(name, ours / bare, at_most=3, detail=detail), most


def growth(peaks: Mapping[int, int]) -> Ratio:
    """The coordinator's memory with many sites, against that with few."""
    few, many = min(peaks), max(peaks)
    detail = f"{peaks[many] / 1e6:.0f} MB against {peaks[few] / 1e6:.0f} MB"
    name = f"peak memory of NVFlare's server and job, {many} sites / {few}"
    return Ratio(name, peaks[many] / peaks[few], at_most=1.3, detail=detail)


def peak_of(process: int) -> int:
    """Bytes that a process had in memory at most."""
    [line] = [
        line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmHWM:")
    ]
    return 1024 * int(line.split()[1])


@dataclass(frozen=True)
class OneRound:
    """A round over sites, ready to be taken again and again."""

    field: Field
    roles: Roles
    server: ServerState
    standing: Standing
    engine: int  # the process of NVFlare's server, whose child the job is

    def peak(self) -> int:
        """Bytes that the server and its job had in memory at most."""
        children = psutil.Process(self.engine).children(recursive=True)
        return sum(peak_of(process) for process in (self.engine, *(child.pid for child in children)))

    def with_news(self, number: int) -> "OneRound":
        """The same with weights that no site has yet."""
        model = {name: value + number * 1e-4 for name, value in self.server.model.items()}
        kept = {name: value.to(self.server.model[name].dtype) for name, value in model.items()}
        return replace(self, server=replace(self.server, model=kept))

    def __call__(self) -> None:
        """Take it; nothing is committed."""
        one_round(self.field, self.roles, self.server, self.standing, self.field.terms.sites)


@contextmanager
def prepared(count: int, agent: str, row: str) -> Iterator[tuple[Path, OneRound]]:
    """A federation with a job that runs, and a round to take."""
    folder = Path(tempfile.mkdtemp(prefix="mammofed-bench-"))
    work = folder / "work"
    plan = Plan(row, "densenet121", Schedule(0.05), local_steps=1, batch=4, device="cpu")
    model = build_model(plan.model, 1, 5, 0)
    try:
        with running(folder, count) as (admin, sites, engine):
            standing = standing_of(work, None)
            with NVFlare(admin, "bench", work, agent).segment(sites) as link:
                field = field_of(link, work, plan, sites)
                roles = workplace(plan, model).roles
                yield folder, OneRound(field, roles, first_state(model), standing, engine)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fedtan() -> Ratio:
    """A round of FedTAN on DenseNet-121 with its 363 exchanges, against one of FedAvg; one local step each."""
    times = {}
    for row in ("fedavg", "fedtan"):
        with prepared(2, AGENT, row) as (_, one):
            one()
            times[row] = min(seconds(one) for _ in range(REPEATS))
    detail = ", ".join(f"{row} {value:.2f} s" for row, value in times.items())
    return Ratio(
        "fedtan / fedavg, one step over NVFlare, 2 sites", times["fedtan"] / times["fedavg"], detail=detail
    )


def measure() -> list[Ratio]:
    """Overheads, memory, and FedTAN's exchanges."""
    found = {count: overhead(count) for count in COUNTS}
    peaks = {count: most for count, (_, most) in found.items()}
    return [*(ratio for ratio, _ in found.values()), growth(peaks), fedtan()]
