"""What a site keeps of a run on its own disk ↔ its state: proposed after each round, kept when the server says so.

Each state lies in a file named by its round and by the digest of the update it was sent with. The server names the
state that counts (`Base`): the one of the last round that it committed with this site in it. The one that counted
before stays too; so a dropped update leaves the site where it was, a kill at any moment loses nothing, and a
server whose last round is damaged goes on from the round before.
"""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fl_core.state import SiteState
from fl_core.wire import packed_parts, unpack
from mammofed.errors import BadData, MammofedError
from mammofed.files import clear_scratch, write_atomically


class Refusal(MammofedError):
    """What the site answers instead of obeying; the words hold nothing of its data."""


@dataclass(frozen=True)
class Base:
    """Which of its states a site trains from: the round that committed it, and the update it came with."""

    round: int = 0
    digest: str = ""

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.round:06d}-{self.digest}.safetensors"


def run_folder(home: Path, run: str) -> Path:
    """Where a site keeps what it has of a run."""
    if not run.replace("-", "").isalnum():
        raise Refusal(f"run {run!r} is no name of a run")
    return home / "runs" / run


class RunState:
    """A run's folder at a site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        clear_scratch(folder)

    def propose(self, base: Base, state: SiteState) -> None:
        """Keep a state beside the one that counts."""
        write_atomically(self.folder / base.name, *packed_parts(state))

    def read(self, base: Base) -> SiteState:
        """The state of that name; the first one is empty."""
        if base == Base():
            return SiteState()
        try:
            return unpack(SiteState, (self.folder / base.name).read_bytes())
        except (FileNotFoundError, BadData) as error:
            raise Refusal(
                f"the state of round {base.round} is not at this site: its folder was lost or exchanged; "
                "begin another run with this site"
            ) from error

    def settle(self, base: Base, keep_newer: bool = False) -> SiteState:
        """The server has committed that state: read it, and forget all others but the one that counted before.

        That one is for a server that finds its last round damaged, and goes back to the one before. Newer ones are
        kept where the news may be old: one of them may have been committed since.
        """
        state = self.read(base)
        found = sorted(path.name for path in self.folder.glob("*.safetensors"))
        before = [name for name in found if name < f"{base.round:06d}"][
            -1:
        ]  # proposals are never older than the base
        newer = [name for name in found if keep_newer and name >= f"{base.round + 1:06d}"]
        for name in found:
            if name not in (base.name, *before, *newer):
                (self.folder / name).unlink()
        return state


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold the folder; a process of an earlier job that still holds it is ended: its round no longer counts."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".process").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(lock.read()), signal.SIGKILL)  # the holder wrote its own number
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
