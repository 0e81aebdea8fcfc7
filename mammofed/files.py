"""Bytes → files that are there as a whole or not at all, in folders that one process at a time holds."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from mammofed.errors import BadSetting, CannotWrite

SCRATCH = ".writing"  # how the name of a file ends that is not there yet
FULL = (errno.ENOSPC, errno.EDQUOT)  # what the system says where there is no room


def scratch_of(path: Path) -> Path:
    """Where this process writes what will be `path`: beside it, hidden."""
    return path.with_name(f".{path.name}.{os.getpid()}{SCRATCH}")


def write_atomically(path: Path, *parts: bytes | memoryview, mode: int = 0o666) -> None:
    """Write beside, wait for the disk, rename: a reader sees the old file or the new, also after a power cut."""
    scratch = scratch_of(path)
    with writing(path):
        try:
            write_synced(scratch, *parts, mode=mode)
            scratch.replace(path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def write_synced(path: Path, *parts: bytes | memoryview, mode: int = 0o666) -> None:
    """Write and wait until the bytes are on disk; the mode is that of a new file."""
    with open(path, "wb", opener=partial(os.open, mode=mode)) as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the folder's entries are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_scratch(folder: Path) -> None:
    """Delete what killed processes left half-written; for whoever is alone in the folder."""
    for left_over in folder.glob(f".*{SCRATCH}"):
        left_over.unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line why a file cannot be written: rights, a full disk."""
    try:
        yield
    except OSError as error:
        remedy = "free some space or name another place" if error.errno in FULL else "name another place"
        raise CannotWrite(f"cannot write {path}: {error.strerror}; {remedy}") from error


def make_folder(path: Path) -> None:
    """The folder, with those above it, where it is not there yet."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def held(folder: Path, why: str) -> Iterator[None]:
    """Hold the folder against other processes; `why` names the work, and a killed process holds nothing."""
    make_folder(folder)
    with writing(folder):
        lock = (folder / ".lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadSetting(
                f"{folder} is in use by another {why}: wait for it, or name another folder"
            ) from error
        yield
