"""Child processes: waited for until they answer, ended with all they started."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.processes import HOST, DidNotStart, end, free_port, start, wait_for
from tests.app.coordinator.services import wait_until

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
print("ready", flush=True)
time.sleep(600)
"""


def test_a_port_that_is_taken_is_not_given() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        number = taken.getsockname()[1]
        assert free_port(number) != number
    assert free_port(number) == number


def test_an_address_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    words = [sys.executable, "-m", "http.server", str(port), "--bind", HOST, "--directory", str(tmp_path)]
    child = start("files", words, tmp_path / "log")
    try:
        wait_for(f"http://{HOST}:{port}/", child)
    finally:
        end(child)
    assert child.process.returncode == -signal.SIGTERM


def test_a_process_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    child = start("the loser", [sys.executable, "-c", "raise SystemExit('no luck')"], tmp_path / "log")
    with pytest.raises(DidNotStart, match="the loser ended with code 1: no luck"):
        wait_for(f"http://{HOST}:{free_port()}/", child)


def test_a_silent_process_is_named_when_the_time_is_over(tmp_path: Path) -> None:
    child = start("the sleeper", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log")
    try:
        with pytest.raises(DidNotStart, match="the sleeper does not answer"):
            wait_for(f"http://{HOST}:{free_port()}/", child, seconds=0.2)
    finally:
        end(child)


def test_what_will_not_end_is_killed_with_all_it_started(tmp_path: Path) -> None:
    child = start("the mule", [sys.executable, "-c", STUBBORN], tmp_path / "log")
    wait_until(lambda: "ready" in child.log.read_text(), "the mule")
    (below,) = psutil.Process(child.process.pid).children()
    end(child, grace=0.3)
    wait_until(lambda: not below.is_running() or below.status() == psutil.STATUS_ZOMBIE, "the end of its child")


def test_a_child_goes_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import pathlib, sys, time
from app.processes import start
child = start("x", [sys.executable, "-c", "import time; time.sleep(600)"], pathlib.Path({str(tmp_path / "log")!r}))
print(child.process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        grandchild = psutil.Process(number)
        os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE, "its end")
