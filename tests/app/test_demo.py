"""`mammofed demo` as a person meets it: started, interrupted by Ctrl-C, started again, and finished."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from app.cli import app
from app.client import Coordinator
from app.commands.demo import open_in_browser
from app.demo import Demo, services
from mammofed.errors import BadSetting
from tests.app.coordinator.services import DONE, wait_until

DEMO = [sys.executable, "-m", "app.cli", "demo", "--rounds", "3", "--model", "densenet-small"]
ROUND = re.compile(r"^(\S+) demo: .*: (\w+), round (\d+)/(\d+)", re.MULTILINE)


@contextmanager
def demo(folder: Path, *more: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A demo of three rounds as the leader of its own group, and its words."""
    said = folder / "".join(["said", *more])
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*DEMO, *more, "--home", str(folder / "home")], stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process, said
    finally:
        process.terminate()
        process.wait(DONE)


def rounds(said: Path) -> list[tuple[str, str, int]]:
    """All that was said of runs: id, state, round."""
    return [(run, state, int(done)) for run, state, done, _ in ROUND.findall(said.read_text())]


def test_ctrl_c_leaves_no_process_and_the_next_start_goes_on(tmp_path: Path) -> None:
    with demo(tmp_path) as (process, said):
        wait_until(lambda: [line for line in rounds(said) if line[2] >= 1], "the first round")
        (dashboard,) = re.findall(r"^dashboard +(\S+)", said.read_text(), re.MULTILINE)
        assert httpx.get(dashboard, trust_env=False).is_success
        (token,) = re.findall(r"^sign in with (\S+)", said.read_text(), re.MULTILINE)
        assert dashboard.endswith(f"/?token={token}")
        (url,) = re.findall(r"^coordinator +(\S+)/api/v1", said.read_text(), re.MULTILINE)
        with Coordinator(url, token) as shown:
            assert shown.me().expires_at < datetime.now(UTC) + timedelta(days=1)
        with pytest.raises(BadSetting, match="in use by another demo"), services(tmp_path / "home", 0, None):
            pass
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 4, "the coordinator, the dashboard and a worker a run are expected"
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(DONE) == 0
        assert [child for child in family if child.is_running()] == []
    names = {run for run, _, _ in rounds(said)}
    with demo(tmp_path, "--headless") as (process, said):
        assert process.wait(DONE) == 0, said.read_text()
    assert {run for run, _, _ in rounds(said)} == names
    assert max(done for _, _, done in rounds(said)[:2]) >= 1
    assert {run for run, state, done in rounds(said) if state == "completed" and done == 3} == names
    table = said.read_text().splitlines()[-5:]
    assert all(any(name in line and "3/3" in line for line in table) for name in ("bn-scaffold-std", "fedavg"))


def test_a_model_that_is_not_known_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    words = ["demo", "--model", "foo", "--headless", "--home", str(tmp_path / "home")]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, BadSetting)
    assert "foo" in str(done.exception)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("display", [":0", None])
def test_the_dashboard_opens_where_there_is_a_display(
    display: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    if display:
        monkeypatch.setenv("DISPLAY", display)
    open_in_browser(Demo(tmp_path, "http://a", "http://b", "secret"))
    assert opened == (["http://b/?token=secret"] if display else [])
