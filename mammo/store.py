"""Patches of each source image → one memory-mapped store on disk, written so that nothing is ever half there.

Each source image first becomes a shard (its patches and rows); shards are joined in order, while others are still
being cut, to one `patches-*.npy` and one `manifest-*.jsonl`. `store.json`, which names them, is put in place last.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mammo.annotations import CLASSES, Refused
from mammo.errors import BadStore
from mammo.lut import LEVELS
from mammofed.errors import BadSetting
from mammofed.files import clear_scratch, scratch_of, write_atomically, writing

FORMAT = 1

Row = dict[str, Any]  # one line of the manifest: plain JSON
Patches = NDArray[np.uint16]  # (n, patch, patch)


@dataclass(frozen=True)
class PatchStore:
    """A patch source over a finished store, or over one split of it; patches stay on disk until read."""

    patches: Patches  # memory map
    chosen: NDArray[np.int64]  # (n,) rows of the split
    labels: NDArray[np.int64]  # (n,)
    classes: tuple[str, ...]
    fingerprint: str
    rows: tuple[Row, ...]  # the manifest of the chosen
    folder: Path
    split: str | None

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process maps the store again, instead of being sent its patches."""
        return open_store, (self.folder, self.split)

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """(B, 1, H, W) in [0, 1]."""
        words = self.patches[self.chosen[indices]]
        return np.multiply(words[:, None], np.float32(1 / LEVELS), dtype=np.float32)


def check_place(folder: Path) -> None:
    """Refuse a folder that holds something else than a store."""
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if found - {".lock"} and "settings.json" not in found:
        raise BadSetting(f"{folder} holds something else than a patch store: name an empty or a new folder")


def start(folder: Path, settings: Row) -> None:
    """Make the folder, or continue one that was begun with the same settings."""
    begun = folder / "settings.json"
    text = json.dumps(settings, sort_keys=True, indent=1)
    with writing(folder):
        (folder / "shards").mkdir(parents=True, exist_ok=True)
    anything_done = is_store(folder) or any((folder / "shards").iterdir())
    if anything_done and begun.exists() and begun.read_text() != text:
        raise BadSetting(f"{folder} was begun with other settings: use the same ones, or another --out")
    write_atomically(begun, text.encode())
    clear_scratch(folder)
    clear_scratch(folder / "shards")


def write_shard(folder: Path, key: str, patches: Patches, rows: Sequence[Row], lost: Sequence[Refused]) -> None:
    """Keep the patches of one source; its row file comes last, and its checksum says whether both are whole."""
    path = folder / "shards" / f"{key}.npy"
    with writing(path):
        np.save(path, patches, allow_pickle=False)
        shard = {"digest": digest(patches, rows), "rows": list(rows), "lost": [asdict(one) for one in lost]}
        path.with_suffix(".json").write_text(json.dumps(shard))


def _lines(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode()


def _parse_lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def finished_keys(folder: Path) -> set[str]:
    """Keys of the sources that need no extraction: in a whole shard, or in the finished store."""
    shards = {path.stem for path in (folder / "shards").glob("*.json") if _is_whole(path)}
    return shards | {source["key"] for source in _read_index(folder).get("sources", [])}


def _is_whole(path: Path) -> bool:
    """Whether a shard is as it was written: nobody waited for the disk, and a power cut may have come."""
    try:
        part = _shard(path)
        return digest(part.patches(), part.rows) == part.digest
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _read_index(folder: Path) -> Row:
    path = folder / "store.json"
    try:
        index = json.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise BadStore(f"{path} cannot be read: make the store again with mammofed patches") from error
    return index if isinstance(index, dict) else {}


@dataclass(frozen=True)
class _Part:
    """Patches of one source, wherever they lie now."""

    key: str
    digest: str
    rows: list[Row]
    lost: list[Refused]  # lesions that could not be located
    file: Path
    start: int = 0

    def patches(self) -> Patches:
        mapped: Patches = np.load(self.file, mmap_mode="r")
        return mapped[self.start : self.start + len(self.rows)]


def _shard(path: Path) -> _Part:
    whole = json.loads(path.read_text())
    return _Part(path.stem, whole["digest"], whole["rows"], _refusals(whole["lost"]), path.with_suffix(".npy"))


def _parts_of(folder: Path) -> Callable[[str], _Part]:
    """What gives the part of a key: its place in the store as it was, else its shard."""
    index = _read_index(folder)
    known = {source["key"]: source for source in index.get("sources", [])}
    old_rows = _parse_lines(folder / index["manifest"]) if index else []

    def part(key: str) -> _Part:
        if key not in known:
            return _shard(folder / "shards" / f"{key}.json")
        source = known[key]
        begin, lost = source["start"], _refusals(source["lost"])
        rows = old_rows[begin : source["stop"]]
        return _Part(key, source["digest"], rows, lost, folder / index["patches"], begin)

    return part


def digest(patches: Patches, rows: Sequence[Row]) -> str:
    """Checksum of one source's patches and rows."""
    content = hashlib.sha256(_lines(rows))
    content.update(np.ascontiguousarray(patches).data)
    return content.hexdigest()


def finish(
    folder: Path, done: Iterable[tuple[str, Refused | None]], settings: Row, refused: Sequence[Refused]
) -> Row:
    """Join the shards of the keys, in this order and each as soon as it is there, to one store; give its index."""
    part_of, parts, reasons = _parts_of(folder), list[_Part](), [*refused]
    beside = scratch_of(folder / "patches")
    with writing(beside):
        out = beside.open("wb")
    with out:
        _write_header(out, 0, int(settings["patch"]))
        for key, reason in done:
            if reason is not None:
                reasons.append(reason)
                continue
            parts.append(part_of(key))
            reasons += parts[-1].lost
            _append(out, parts[-1])
        rows = [row for part in parts for row in part.rows]
        _write_header(out, len(rows), int(settings["patch"]))
    if not rows:
        beside.unlink()
        first = "; ".join(f"{one.name}: {one.reason}" for one in reasons[:3])
        raise BadStore(f"no patch could be taken, {len(reasons)} refusals, the first: {first}")
    facts = {
        "settings": settings,
        "sources": _sources(parts),
        "refused": sorted(reasons, key=lambda one: one.name),
    }
    return _put_in_place(folder, beside, rows, facts)


def _write_header(out: BinaryIO, count: int, size: int) -> None:
    """Begin a .npy file; numpy leaves room in it, so that the count may be written over when it is known."""
    out.seek(0)
    header = {"descr": "<u2", "fortran_order": False, "shape": (count, size, size)}
    np.lib.format.write_array_header_1_0(out, header)
    out.flush()
    os.fsync(out.fileno())


def _append(out: BinaryIO, part: _Part) -> None:
    """Add patches and wait for the disk: it works while other sources are still being cut."""
    with writing(Path(out.name)):
        out.write(np.ascontiguousarray(part.patches(), "<u2").data)
        out.flush()
        os.fdatasync(out.fileno())


def _sources(parts: Sequence[_Part]) -> list[Row]:
    ends = np.cumsum([len(part.rows) for part in parts]).tolist()
    return [
        {
            "key": part.key,
            "start": end - len(part.rows),
            "stop": end,
            "digest": part.digest,
            "lost": [asdict(one) for one in part.lost],
        }
        for part, end in zip(parts, ends, strict=True)
    ]


def _put_in_place(folder: Path, patches: Path, rows: Sequence[Row], facts: Row) -> Row:
    """Name files by content, point `store.json` at them last, then remove what it no longer names."""
    digests = [source["digest"] for source in facts["sources"]]
    fingerprint = hashlib.sha256(json.dumps([facts["settings"], digests], sort_keys=True).encode()).hexdigest()
    names = {"patches": f"patches-{fingerprint[:16]}.npy", "manifest": f"manifest-{fingerprint[:16]}.jsonl"}
    patches.replace(folder / names["patches"])
    write_atomically(folder / names["manifest"], _lines(rows))
    refused = [asdict(one) for one in facts["refused"]]
    index = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "classes": CLASSES,
        **names,
        **facts,
        "refused": refused,
    }
    write_atomically(folder / "store.json", json.dumps(index, indent=1).encode())
    stale = [*(folder / "shards").iterdir(), *folder.glob("patches-*.npy"), *folder.glob("manifest-*.jsonl")]
    for path in stale:
        if path.name not in names.values():
            path.unlink()
    return index


def open_store(folder: Path, split: str | None = None) -> PatchStore:
    """Map a finished store, whole or one split of it; only the manifest is read."""
    index = _read_index(folder)
    if index.get("format") != FORMAT:
        raise BadStore(f"{folder} is no finished patch store: run mammofed patches again to finish it")
    try:
        rows = _parse_lines(folder / index["manifest"])
        patches: Patches = np.load(folder / index["patches"], mmap_mode="r")
        classes = tuple(str(name) for name in index["classes"])
        labels = np.array([classes.index(row["class"]) for row in rows], np.int64)
        chosen = np.array([i for i, row in enumerate(rows) if split in (None, row["split"])], np.int64)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadStore(f"{folder} is damaged ({type(error).__name__}): make it again") from error
    if patches.ndim != 3 or len(patches) != len(rows) or patches.dtype != np.uint16:
        raise BadStore(f"{folder} has {len(rows)} rows for patches {patches.shape}: make it again")
    if not len(chosen):
        raise BadStore(f"{folder} has no patches of split {split!r}")
    fingerprint = hashlib.sha256(f"{index['fingerprint']}:{split}".encode()).hexdigest()
    manifest = tuple(rows[i] for i in chosen.tolist())
    return PatchStore(patches, chosen, labels[chosen], classes, fingerprint, manifest, folder, split)


def verify(folder: Path) -> None:
    """Read the whole store and compare every checksum."""
    index, store = _read_index(folder), open_store(folder)
    for source in index["sources"]:
        span = slice(source["start"], source["stop"])
        if digest(store.patches[span], store.rows[span]) != source["digest"]:
            raise BadStore(f"{folder}: patches {source['start']} to {source['stop']} changed: make it again")


def is_store(folder: Path) -> bool:
    """Whether the folder holds a finished store."""
    return (folder / "store.json").is_file()


def is_begun(folder: Path) -> bool:
    """Whether the folder holds a store, finished or not."""
    return (folder / "settings.json").is_file() and (folder / "shards").is_dir()


def refused_sources(folder: Path) -> list[Refused]:
    """What could not be extracted when the store was made, and why."""
    return _refusals(_read_index(folder).get("refused", []))


def _refusals(rows: Iterable[Row]) -> list[Refused]:
    return [Refused(**one) for one in rows]
