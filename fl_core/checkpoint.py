"""Server and site states ↔ a folder of rounds that survives a kill at any moment.

Tensors lie as safetensors in `objects/`, named by their SHA-256; `rounds/000012.json` names those of round 12 and
carries the round's record. A round is committed by the rename of that one small file, after everything it names
is on disk, so it is there as a whole or not at all. Nothing is ever pickled.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_core.state import ServerState, SiteState
from fl_core.wire import packed_parts, unpack
from mammofed.errors import BadData
from mammofed.files import (
    clear_scratch,
    make_folder,
    scratch_of,
    sync_folder,
    write_atomically,
    write_synced,
    writing,
)

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
    make_folder(folder / "rounds")
    number = checkpoint.server.round
    body = {
        "round": number,
        "identity": checkpoint.identity,
        "record": checkpoint.record,
        **write_states(folder, checkpoint),
    }
    path = folder / "rounds" / f"{number:06d}.json"
    text = json.dumps({"sha256": digest(canonical(body)), **body}, indent=1)
    write_atomically(path, text.encode())
    clear_scratch(folder / "rounds")
    clear_objects(folder, newest_objects(folder))
    return path


def write_states(folder: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    """Put the states on disk, and return their names: the server's and each site's."""
    make_folder(folder / "objects")
    return {
        "server": write_object(folder, packed_parts(checkpoint.server)),
        "sites": {name: write_object(folder, packed_parts(site)) for name, site in checkpoint.sites.items()},
    }


def read_states(folder: Path, named: Mapping[str, Any]) -> tuple[ServerState, Mapping[str, SiteState]]:
    """The states of those names, every byte checked; of the sites' none is in memory until it is asked for."""
    server = unpack(ServerState, read_object(folder, named["server"]))
    for name in named["sites"].values():
        check_object(folder, name)
    return server, StoredStates(folder, named["sites"])


@dataclass(frozen=True)
class StoredStates(Mapping[str, SiteState]):
    """The sites' states of a round, read one at a time; they are there for as long as the round is kept."""

    folder: Path
    objects: Mapping[str, str]  # the name of each site's

    def __getitem__(self, site: str) -> SiteState:
        return unpack(SiteState, read_object(self.folder, self.objects[site]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.objects)

    def __len__(self) -> int:
        return len(self.objects)


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
    return Checkpoint(*read_states(path.parent.parent, body), body["record"], body["identity"])


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
    scratch = scratch_of(folder / "objects" / "next")
    with writing(folder):
        try:
            with ThreadPoolExecutor(1) as pool:
                hashing = pool.submit(digest, *parts)
                write_synced(scratch, *parts)
                name = hashing.result()
            scratch.replace(object_path(folder, name))
        except BaseException:
            scratch.unlink(missing_ok=True)  # on a full disk it may hold the last of the room
            raise
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


def check_object(folder: Path, name: str) -> None:
    """Verify the digest of an object without holding it in memory."""
    path = object_path(folder, name)
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DamagedCheckpoint(f"checkpoint object {path} cannot be read ({error})") from error
    if found != name:
        raise DamagedCheckpoint(f"checkpoint object {path} does not match its checksum")


def newest_objects(folder: Path) -> set[str]:
    """The objects that the newest rounds name."""
    named: set[str] = set()
    for path in sorted((folder / "rounds").glob("*.json"))[-KEPT_ROUNDS:]:
        try:
            body = read_manifest(path)
        except DamagedCheckpoint:
            continue
        named.update([body["server"], *body["sites"].values()])
    return named


def clear_objects(folder: Path, kept: set[str]) -> None:
    """Delete all objects but those."""
    paths = {object_path(folder, name) for name in kept}
    for path in (folder / "objects").iterdir():
        if path not in paths:
            path.unlink()


@dataclass(frozen=True)
class FolderLedger:
    """Rounds committed in a folder."""

    folder: Path

    def latest(self) -> Checkpoint | None:
        """The newest round that is whole."""
        return read_latest(self.folder)

    def committed(self) -> int:
        """The number of the newest round, whole or not."""
        return max((int(path.stem) for path in (self.folder / "rounds").glob("*.json")), default=0)

    def commit(self, checkpoint: Checkpoint, moment: object) -> None:
        """Keep a round; what is shown of it lies in its record."""
        write_checkpoint(self.folder, checkpoint)


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
