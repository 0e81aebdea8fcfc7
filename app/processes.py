"""A command → a process with a session of its own, waited for until it answers, and ended with all it started."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from mammofed.errors import MammofedError

HOST = "127.0.0.1"
GRACE = 20.0  # seconds that a process has to end by itself
LOOK = 0.1  # seconds between two looks at a process or an address
TOLD, WIDE = 3, 200  # lines of a log that an error shows, and characters of each
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be


class DidNotStart(MammofedError):
    """A process that ended or stayed silent where it was waited for."""


@dataclass(frozen=True)
class Child:
    """A process that was started here, under the name that people know it by."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


def free_port(wanted: int = 0) -> int:
    """The wanted port, or any other that is free where somebody has it (or none is wanted)."""
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((HOST, wanted))
        except OSError:
            place.bind((HOST, 0))
        number: int = place.getsockname()[1]
        return number


def start(name: str, words: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Child:
    """Start it apart from the terminal, whose Ctrl-C is not meant for it, with its words in a log file."""
    with log.open("ab") as said:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    return Child(name, process, log)


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it is gone (Linux)."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def wait_for(url: str, child: Child, seconds: float = 60.0) -> None:
    """Return as soon as the address answers well; raise where the process ends or the time is over."""
    deadline = time.monotonic() + seconds
    while not answers(url):
        if child.process.poll() is not None:
            raise DidNotStart(f"{child.name} ended with code {child.process.returncode}: {last_words(child.log)}")
        if time.monotonic() > deadline:
            raise DidNotStart(f"{child.name} does not answer at {url} after {seconds:g} s: see {child.log}")
        time.sleep(LOOK)


def answers(url: str) -> bool:
    """Whether the address answers, and well."""
    try:
        return httpx.get(url, timeout=5.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def last_words(log: Path) -> str:
    """The end of a log, for an error."""
    lines = [line[-WIDE:] for line in log.read_text(errors="replace").splitlines()[-TOLD:]]
    return " | ".join([*lines, f"see {log}"])


def end(child: Child, grace: float = GRACE) -> None:
    """Ask the process to end, and kill what is left of its session when the time is over."""
    if child.process.poll() is None:
        child.process.terminate()
    try:
        child.process.wait(grace)
    except subprocess.TimeoutExpired:
        child.process.kill()
        child.process.wait()
    deadline = time.monotonic() + grace
    while session_lives(child) and time.monotonic() < deadline:
        time.sleep(LOOK)
    with suppress(ProcessLookupError):
        os.killpg(child.process.pid, signal.SIGKILL)


def session_lives(child: Child) -> bool:
    """Whether any process of the child's group is left."""
    try:
        os.killpg(child.process.pid, 0)
    except ProcessLookupError:
        return False
    return True
