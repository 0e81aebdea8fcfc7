"""docker-compose.yml: valid; its very commands and environment, as processes with a PostgreSQL, train a run."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.client import Coordinator
from app.processes import free_port
from app.schemas.runs import RunSettings
from dashboard.charts import PLOTLY
from tests.app.coordinator.services import ended, running_postgresql, wait_until

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name in SERVICES if name != "database"]
pytestmark = pytest.mark.xdist_group("federation")


@pytest.mark.parametrize("files", [["docker-compose.yml"], ["docker-compose.yml", "docker-compose.gpu.yml"]])
def test_the_compose_files_are_valid(files: list[str]) -> None:
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed")
    chosen = [word for name in files for word in ("-f", name)]
    done = subprocess.run(["docker-compose", *chosen, "config", "-q"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_service_runs_as_root_or_unwatched() -> None:
    image = (ROOT / "Dockerfile").read_text()
    assert image.index("USER mammofed") < image.index("ENTRYPOINT")
    for name in OURS:
        assert SERVICES[name]["cap_drop"] == ["ALL"]
        assert "healthcheck" in SERVICES[name]
        assert "user" not in SERVICES[name]
    text = (ROOT / "docker-compose.yml").read_text()
    assert "PASSWORD:" not in text  # secrets are files


def test_a_hospital_holds_its_own_kit_and_nothing_else_of_the_federation() -> None:
    for number in (1, 2):
        name, own = f"hospital-{number}", f"kit-{number}"
        mounted = {volume.split(":")[0] for volume in SERVICES[name]["volumes"]}
        assert mounted == {name, own}
        holders = {
            one for one in SERVICES if any(v.startswith(f"{own}:") for v in SERVICES[one].get("volumes", []))
        }
        assert holders == {name, own}
        assert f"{name}.zip" in " ".join(SERVICES[own]["entrypoint"])


class Machine:
    """One machine's stand-in for the containers: their paths, host names and ports are translated."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {8400: free_port(), 8501: free_port(), 8002: free_port()}

    def translated(self, service: str, words: str) -> str:
        """A word of the compose file, as it is here."""
        here = {
            "/var/lib/mammofed": str(self.folder / service),
            "/federation": str(self.folder / "federation"),
            "/handed-over": str(self.folder / f"kit-{service[-1]}"),
            "/run/secrets": str(self.folder / "secrets"),
            "http://coordinator:8400": f"http://127.0.0.1:{self.ports[8400]}",
            "--port=8501": f"--port={self.ports[8501]}",
            "0.0.0.0": "127.0.0.1",
            "patches=600,size=48": "patches=100,size=32",
        }
        for there, mine in here.items():
            words = words.replace(there, mine)
        return words

    def command(self, service: str) -> list[str]:
        """The service's command: the image's entry point is `mammofed`."""
        about = SERVICES[service]
        words = [*about.get("entrypoint", ["mammofed"]), *about["command"]]
        words = [self.translated(service, word) for word in words]
        if service == "kits":
            words = ["localhost" if word == "coordinator" else word for word in words]
            words += ["--port", str(self.ports[8002])]
        program = {"mammofed": [sys.executable, "-m", "app.cli"], "python": [sys.executable]}
        return [*program[words[0]], *words[1:]]

    def environment(self, service: str) -> dict[str, str]:
        """The service's environment."""
        given = {
            name: self.translated(service, value)
            for name, value in SERVICES[service].get("environment", {}).items()
        }
        if service == "coordinator":
            given["MAMMOFED_PORT"] = str(self.ports[8400])
        return {**os.environ, "OMP_NUM_THREADS": "1", **given}

    @contextmanager
    def running(self, service: str) -> Iterator[subprocess.Popen[bytes]]:
        """The service as a process, until the block ends."""
        (self.folder / service).mkdir()
        with (self.folder / f"{service}.log").open("wb") as log:
            process = subprocess.Popen(
                self.command(service), cwd=ROOT, env=self.environment(service), stdout=log, stderr=log
            )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)

    def answers(self, port: int, path: str) -> bool:
        """What the health check asks."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.ports[port]}{path}", trust_env=False).is_success
        except httpx.HTTPError:
            return False


def test_the_same_commands_as_processes_train_to_the_end(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with ExitStack() as stack:
        database = stack.enter_context(running_postgresql())
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets" / "mammofed_database_url").write_text(database)
        for _ in range(2):  # the second start finds the kits
            for service in ("kits", "kit-1", "kit-2"):
                (tmp_path / service).mkdir(exist_ok=True)
                subprocess.run(machine.command(service), cwd=ROOT, env=machine.environment(service), check=True)
        for service in ("coordinator", "dashboard", "hospital-1", "hospital-2"):
            stack.enter_context(machine.running(service))
        wait_until(lambda: machine.answers(8400, "/readyz"), "the coordinator", 120)
        wait_until(lambda: machine.answers(8501, "/_stcore/health"), "the dashboard", 120)
        assert machine.answers(8501, f"/{PLOTLY}"), "the script that draws charts"
        token = (tmp_path / "coordinator" / "admin.token").read_text().strip()
        client = stack.enter_context(Coordinator(f"http://127.0.0.1:{machine.ports[8400]}", token))
        wait_until(lambda: all(site.online for site in client.sites()), "both sites", 120)
        assert "postgresql" in client.health().database
        settings = RunSettings(
            engine="nvflare",
            sites=("hospital-1", "hospital-2"),
            model="densenet-small",
            rounds=2,
            local_steps=2,
            batch=8,
            resamples=100,
        )
        run = client.create(settings)
        client.act(run.id, "start")
        done = ended(client, run.id)
        assert (done.state, done.round) == ("completed", 2)
        assert done.latest is not None
        assert done.latest.accuracy.low is not None  # the demo's sites share their scores
