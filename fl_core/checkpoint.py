"""Server and site states ↔ a folder of rounds that survives a kill at any moment.

Tensors lie as safetensors in `objects/`, named by their SHA-256; `rounds/000012.json` names those of round 12 and
carries the round's record. A round is committed by the rename of that one small file, after everything it names
is on disk, so it is there as a whole or not at all. Nothing is ever pickled.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_core.state import ServerState, SiteState
from fl_core.wire import packed_parts, unpack
from mammofed.errors import BadData

log = logging.getLogger(__name__)
KEPT_ROUNDS = 2  # whose tensors stay: the last one, and the one before should the last be damaged


class DamagedCheckpoint(BadData):
    """A checkpoint whose bytes are not those that were written."""


@dataclass(frozen=True)
class Checkpoint:
    """One committed round: all that is needed to go on, bit for bit."""

    server: ServerState
    sites: Mapping[str, SiteState]
    record: Mapping[str, Any]  # losses and metrics of the round, as shown to people
    identity: Mapping[str, Any]  # plan and data, so that another run is not continued by mistake


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Commit a round: objects first, then the rename of its manifest; older objects are cleared away."""
    (folder / "objects").mkdir(parents=True, exist_ok=True)
    (folder / "rounds").mkdir(exist_ok=True)
    server = checkpoint.server
    body = {
        "round": server.round,
        "identity": checkpoint.identity,
        "record": checkpoint.record,
        "server": write_object(folder, packed_parts(server)),
        "sites": {name: write_object(folder, packed_parts(site)) for name, site in checkpoint.sites.items()},
    }
    path = folder / "rounds" / f"{server.round:06d}.json"
    text = json.dumps({"sha256": digest(canonical(body)), **body}, indent=1)
    write_atomically(path, text.encode())
    clear_objects(folder)
    return path


def read_latest(folder: Path) -> Checkpoint | None:
    """The newest round that is whole; a damaged one is named in the log, and the one before is used."""
    paths = sorted((folder / "rounds").glob("*.json"), reverse=True)
    for path in paths:
        try:
            return read_checkpoint(path)
        except DamagedCheckpoint as error:
            log.warning("%s; the round before it is used", error)
    if paths:
        raise DamagedCheckpoint(f"{folder}: no round of it can be read; start anew in another folder")
    return None


def read_checkpoint(path: Path) -> Checkpoint:
    """One round, every byte of it checked."""
    body = read_manifest(path)
    folder = path.parent.parent
    server = unpack(ServerState, read_object(folder, body["server"]))
    sites = {name: unpack(SiteState, read_object(folder, key)) for name, key in body["sites"].items()}
    return Checkpoint(server, sites, body["record"], body["identity"])


def read_records(folder: Path, until: int) -> list[dict[str, Any]]:
    """The records of rounds 1 to `until`, for curves and tables."""
    paths = [folder / "rounds" / f"{number:06d}.json" for number in range(1, until + 1)]
    return [read_manifest(path)["record"] for path in paths]


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest's content, its checksum verified."""
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
        expected = body.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedCheckpoint(f"checkpoint {path} cannot be read ({error})") from error
    if digest(canonical(body)) != expected:
        raise DamagedCheckpoint(f"checkpoint {path} does not match its checksum")
    return body


def write_object(folder: Path, parts: Sequence[bytes | memoryview]) -> str:
    """Write parts as one file under the name of their digest; hashing and writing run side by side."""
    scratch = folder / "objects" / f".writing-{os.getpid()}"
    with ThreadPoolExecutor(1) as pool:
        hashing = pool.submit(digest, *parts)
        write_synced(scratch, *parts)
        name = hashing.result()
    scratch.replace(object_path(folder, name))
    sync_folder(folder / "objects")
    return name


def read_object(folder: Path, name: str) -> bytes:
    """The bytes of that name, after their digest has been verified."""
    path = object_path(folder, name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedCheckpoint(f"checkpoint object {path} cannot be read ({error})") from error
    if digest(data) != name:
        raise DamagedCheckpoint(f"checkpoint object {path} does not match its checksum")
    return data


def clear_objects(folder: Path) -> None:
    """Delete the objects that none of the newest rounds names."""
    kept = sorted((folder / "rounds").glob("*.json"))[-KEPT_ROUNDS:]
    named: set[Path] = set()
    for path in kept:
        try:
            body = read_manifest(path)
        except DamagedCheckpoint:
            continue
        objects = [body["server"], *body["sites"].values()]
        named.update(object_path(folder, name) for name in objects)
    for path in (folder / "objects").iterdir():
        if path not in named:
            path.unlink()


def object_path(folder: Path, name: str) -> Path:
    """Where the object of that digest lies."""
    return folder / "objects" / f"{name}.safetensors"


def canonical(body: Mapping[str, Any]) -> bytes:
    """One byte string for one value, whatever its formatting on disk."""
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def digest(*parts: bytes | memoryview) -> str:
    """SHA-256 of the parts as one, in hex."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """A file that is there as a whole or not at all, also after a power cut."""
    scratch = path.with_name(f".{path.name}.writing")
    write_synced(scratch, data)
    scratch.replace(path)
    sync_folder(path.parent)


def write_synced(path: Path, *parts: bytes | memoryview) -> None:
    """Write and wait until the bytes are on disk."""
    with path.open("wb") as file:
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
