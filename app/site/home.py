"""A site's folder → how the site stands: its settings, whether its agent works, which rounds it has."""

import fcntl
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from app.site.data import SiteSettings, read_settings
from mammofed.errors import BadSetting

HOME = "MAMMOFED_SITE"  # in the environment: the site's folder, for the processes that the engine starts
PATIENCE = 30.0  # seconds that the agent has to stop


@dataclass(frozen=True)
class Joined:
    """A site that has joined."""

    settings: SiteSettings
    paused: bool
    rounds: dict[str, int]  # by run: the newest round whose state is on disk


def joined(home: Path) -> Joined:
    """How the site of that folder stands."""
    settings = read_settings(home)
    if (home / "left").exists():
        raise BadSetting(f"site {settings.name!r} has left: join again with a new kit")
    runs = sorted(path for path in (home / "runs").glob("*") if path.is_dir())
    return Joined(settings, (home / "paused").exists(), {run.name: newest_round(run) for run in runs})


def newest_round(run: Path) -> int:
    """Of the states in a run's folder."""
    return max((int(path.name.split("-")[0]) for path in run.glob("*.safetensors")), default=0)


def contact_of(home: Path) -> datetime | None:
    """When the coordinator's last order came."""
    try:
        return datetime.fromtimestamp((home / "contact").stat().st_mtime, UTC)
    except FileNotFoundError:
        return None


def is_at_work(home: Path) -> bool:
    """Whether an agent holds the folder."""
    lock = home / "agent" / ".lock"
    if not lock.exists():
        return False
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def forget(home: Path) -> None:
    """Wait for the agent's end, then delete key and state."""
    until = time.monotonic() + PATIENCE
    while is_at_work(home):
        if time.monotonic() > until:
            raise BadSetting(f"the agent in {home} does not stop: end its process, and leave again")
        time.sleep(0.2)
    for name in ("kit", "runs"):
        shutil.rmtree(home / name, ignore_errors=True)
