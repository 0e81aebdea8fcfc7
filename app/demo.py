"""A folder → a coordinator, two synthetic hospitals and two rival runs in it; what was begun there goes on."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from app.client import Coordinator
from app.processes import HOST, Child, end, free_port, start, wait_for
from app.schemas.access import NewToken
from app.schemas.runs import DataSettings, Run, RunSettings
from mammofed.files import held

RIVALS = {"bn-scaffold-std": "demo: BN-SCAFFOLD", "fedavg": "demo: FedAvg, its rival"}
BROKEN_OFF = ("stopped", "failed")  # states from which a run does not go on
KEPT = "coordinator"  # folder in the demo's, which the coordinator holds
SITES = ("hospital-1", "hospital-2")  # as synthetic.sites names the first two
SETTINGS = RunSettings(  # for two cores: one thread a run, both at the same time
    model="densenet121",
    rounds=60,
    local_steps=10,
    batch=16,
    rate=0.02,
    warmup=50,
    resamples=500,
    threads=1,
    data=DataSettings(sites=len(SITES), skew=1.0, image_size=48, patches=1000),
)


@dataclass(frozen=True)
class Demo:
    """Where a demo is: its folder, its coordinator and its dashboard."""

    home: Path
    coordinator: str  # URL
    dashboard: str | None  # URL; None: it has none
    token: str  # to sign in with, for a day: the dashboard's address shows it


@contextmanager
def services(home: Path, port: int, dashboard_port: int | None) -> Iterator[Demo]:
    """The coordinator and, where a port is given, the dashboard; both end with the block."""
    home = home.expanduser().resolve()
    with held(home, "demo"), ExitStack() as stack:
        url = address(port)
        child = start_coordinator(home, url)
        stack.callback(end, child)
        wait_for(f"{url}/readyz", child)
        shown = None if dashboard_port is None else address(dashboard_port)
        if shown is not None:
            child = start_dashboard(home, shown, url)
            stack.callback(end, child)
            wait_for(f"{shown}/_stcore/health", child)
        with connected(home, url) as coordinator:
            made = coordinator.create_token(NewToken(name="demo", role="coordinator", days=1))
        yield Demo(home, url, shown, made.secret)


def connected(home: Path, url: str) -> Coordinator:
    """A connection signed in with the lasting token, which no screen shows and by which runs are found again."""
    return Coordinator(url, (home / KEPT / "admin.token").read_text().strip())


def address(port: int) -> str:
    """An address with that port, or a free one."""
    return f"http://{HOST}:{free_port(port)}"


def start_coordinator(home: Path, url: str) -> Child:
    """The service in a process of its own; SQLite, whatever the environment says."""
    words = ["-m", "app.cli", "coordinator", "--home", str(home / KEPT), "--host", HOST, "--port", port_of(url)]
    environment = {"MAMMOFED_DATABASE_URL": "", "MAMMOFED_PARALLEL_RUNS": str(len(RIVALS))}
    return start("the coordinator", [sys.executable, *words], home / "coordinator.log", environment)


def start_dashboard(home: Path, url: str, coordinator: str) -> Child:
    """The dashboard in a process of its own, pointed at the coordinator."""
    words = ["-m", "dashboard", "--url", coordinator, "--host", HOST, "--port", port_of(url)]
    return start("the dashboard", [sys.executable, *words], home / "dashboard.log")


def port_of(url: str) -> str:
    """The port of an address."""
    return url.rpartition(":")[2]


def begin_runs(coordinator: Coordinator, settings: RunSettings) -> tuple[str, ...]:
    """The rivals' runs, created or found again, training; other runs of the folder pause for them."""
    enrolled = {site.name for site in coordinator.sites()}
    for name in SITES:
        if name not in enrolled:
            coordinator.enrol(name)
    names = tuple(rival(coordinator, settings, algorithm).id for algorithm in RIVALS)
    for run in coordinator.runs(limit=500).items:
        if run.id not in names and run.state == "running" and not run.pausing:
            coordinator.act(run.id, "pause")
    for name in names:
        run = coordinator.run(name)
        if "start" in run.actions or "resume" in run.actions:
            coordinator.act(name, "start" if "start" in run.actions else "resume")
    return names


def rival(coordinator: Coordinator, settings: RunSettings, algorithm: str) -> Run:
    """The run of that algorithm: the same settings give the same run, unless it was stopped or has failed."""
    wanted = settings.model_copy(update={"algorithm": algorithm, "name": RIVALS[algorithm]})
    digest = hashlib.sha256(wanted.model_dump_json().encode()).hexdigest()
    tries = (coordinator.create(wanted, f"demo-{digest[:32]}-{number}") for number in count(1))
    return next(run for run in tries if run.state not in BROKEN_OFF)
