"""NVFlare's side of a site: whose orders it takes, and whose folder it holds."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from nvflare.collab.api.app import ClientApp
from nvflare.collab.runtime.defs import CallHeaderKey, CallReplyKey, ObjectCallKey
from nvflare.collab.runtime.dispatch import _call_app_method
from nvflare.fuel.f3.cellnet.utils import new_cell_message

from app.coordinator.engines.nvflare import Admin, NVFlare, write_job
from app.site.agent import Agent
from app.site.data import SiteSettings, write_settings
from app.site.home import HOME
from app.site.work import SiteWork

Begin = Callable[[str], subprocess.Popen[str]]
SITE = "hospital-1"
BEGUN = """
import sys
from types import SimpleNamespace
from nvflare.collab.api.context import set_call_context
from app.site.agent import Agent

set_call_context(SimpleNamespace(server=None))
agent = Agent(sys.argv[1])
agent.begin()
print("begun", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_settings(tmp_path, SiteSettings(SITE, "synthetic:1/2,patches=30,size=32"))
    return tmp_path


HELLO = {"order": "hello", "text": json.dumps({"run": "run-1"})}


def called(agent: Agent, caller: str, method: str = "take", words: Mapping[str, object] = HELLO) -> dict[str, Any]:
    """What NVFlare's own dispatch answers to a call from that participant."""
    app = ClientApp(agent)
    app.name = SITE
    headers = {
        CallHeaderKey.AUTHENTICATED_CALLER: caller,
        CallHeaderKey.METHOD_NAME: method,
        CallHeaderKey.TARGET_NAME: f"{SITE}.{next(iter(app.get_collab_objects()))}",
    }
    request = new_cell_message(headers, {ObjectCallKey.KWARGS: dict(words)})
    answer: dict[str, Any] = _call_app_method(request, app, logging.getLogger(__name__)).payload
    return answer


def test_a_site_takes_orders_from_the_server_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.site.agent.leave_with_parent", lambda: None)  # the tests may outlive who started them
    agent = Agent("run-1")
    agent.work = SiteWork(home, SiteSettings(SITE, "synthetic:1/2,patches=30,size=32"), None, None)  # type: ignore[arg-type]
    assert json.loads(called(agent, "server")[CallReplyKey.RESULT])["site"] == SITE
    refused = called(agent, "hospital-2")
    assert "not from 'hospital-2'" in refused[CallReplyKey.ERROR]
    assert CallReplyKey.RESULT not in refused
    dialled = called(agent, "hospital-2", "dial", {"port": 1, "word": ""})
    assert "not from 'hospital-2'" in dialled[CallReplyKey.ERROR]
    assert agent.caller is None


@pytest.fixture
def begin(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Starts a site's job process for a run, and waits until it holds its folder."""
    monkeypatch.setenv(HOME, str(home))
    started: list[subprocess.Popen[str]] = []

    def begun(run: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", BEGUN, run]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        return process

    yield begun
    for process in started:
        process.kill()
        process.communicate()


def test_two_runs_share_a_site_and_a_new_job_replaces_the_old_one_of_its_run(begin: Begin) -> None:
    first, other = begin("run-1"), begin("run-2")
    assert first.poll() is None
    begin("run-1")
    assert first.wait(10) == -9
    assert other.poll() is None


LOADED = """
import subprocess, sys
job = "import time; from app.site.agent import Agent; Agent('run-1'); time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", job], stdout=subprocess.DEVNULL)
print(process.pid, flush=True)
process.wait()
"""


def test_a_job_ends_with_its_site_even_if_that_died_before_it_had_begun() -> None:
    with subprocess.Popen([sys.executable, "-c", LOADED], stdout=subprocess.PIPE, text=True) as site:
        assert site.stdout is not None
        job = psutil.Process(int(site.stdout.readline()))
        site.kill()  # long before the job has loaded anything
    try:
        job.wait(60)
    finally:
        if job.is_running():
            job.kill()


def test_a_job_tells_its_agents_the_run(tmp_path: Path) -> None:
    write_job(tmp_path, NVFlare(Admin(tmp_path), "run-7", tmp_path), (SITE,), "relay")
    written = json.loads((tmp_path / "app" / "config" / "config_fed_client.json").read_bytes())
    assert written["components"] == [{"id": "agent", "path": "app.site.agent.Agent", "args": {"run": "run-7"}}]
