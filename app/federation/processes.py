"""A participant's folder → its NVFlare process, kept alive until it is told to stop."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

STOP = 15.0  # seconds that a process has to end by itself
CALM = 60.0  # a process that lived so long is started again at once
LONGEST = 30.0  # seconds between two starts of one that dies at once
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be
MEMORY = {  # of glibc: what NVFlare frees with each frame is kept for the next, not given back and cleared again
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}


def server_command(folder: Path) -> list[str]:
    """NVFlare's server in its folder."""
    return engine_command("server.server_train", folder, "fed_server.json")


def client_command(folder: Path, site: str) -> list[str]:
    """NVFlare's client in its folder; it connects outbound only."""
    return [
        *engine_command("client.client_train", folder, "fed_client.json"),
        f"uid={site}",
        "heart_beat_interval=5",
    ]


def engine_command(module: str, folder: Path, config: str) -> list[str]:
    """The words that both share."""
    words = ["-u", "-m", f"nvflare.private.fed.app.{module}", "-m", str(folder.absolute()), "-s", config]
    return [sys.executable, *words, "--set", "secure_train=true", "org=mammofed", "config_folder=config"]


def start(command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start it in a session of its own, with its words in a log file; it does not outlive this process."""
    with log.open("ab") as words:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            env={**MEMORY, **os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it is gone (Linux)."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stop(process: subprocess.Popen[bytes], patience: float = STOP) -> None:
    """End the process and all that it started, gently and then not; jobs have sessions of their own."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    if process.poll() is None:
        process.terminate()
    _, left = psutil.wait_procs(family, patience)
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


INIT = 1  # takes in orphans, and starts none of our processes


def leave_with_parent() -> None:
    """Watch, from a thread, for the end of the process that started this one, and end with it, even if it has."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent != INIT:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def run_until_told(
    command: list[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Keep a process alive until Ctrl-C or SIGTERM, or until it is not wanted any more."""
    told = threading.Event()
    before = {kind: signal.signal(kind, lambda *_: told.set()) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        keep_alive(lambda: start(command, log, environment), lambda: wanted() and not told.is_set())
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def keep_alive(begin: Callable[[], subprocess.Popen[bytes]], wanted: Callable[[], bool]) -> None:
    """Start the process again whenever it ends, until it is not wanted; one that dies at once waits longer."""
    pause = 1.0
    while wanted():
        began = time.monotonic()
        process = begin()
        try:
            while process.poll() is None and wanted():
                time.sleep(0.5)
        finally:
            stop(process)
        pause = 1.0 if time.monotonic() - began > CALM else min(2 * pause, LONGEST)
        until = time.monotonic() + pause
        while wanted() and time.monotonic() < until:
            time.sleep(0.2)
