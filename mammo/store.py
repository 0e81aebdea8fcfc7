"""Patches of each source image → one memory-mapped store on disk, written so that nothing is ever half there.

While extraction runs, each source image has a shard (its patches and rows). At the end the shards become one
`patches-*.npy` and one `manifest-*.jsonl`, and `store.json`, which names them, is put in place last.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mammo.annotations import CLASSES, Refused
from mammo.errors import BadStore
from mammofed.errors import BadSetting

FORMAT = 1
LEVELS = 65535  # grey levels of a stored patch

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


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside, flush to disk, rename: a reader sees the old file or the new one."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with writing(path):
        with beside.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line why a file cannot be written: rights, a full disk."""
    try:
        yield
    except OSError as error:
        raise BadSetting(
            f"cannot write {path}: {error.strerror}; free some space or name another place"
        ) from error


def start(folder: Path, settings: Row) -> None:
    """Make the folder, or continue one that was begun with the same settings."""
    begun = folder / "settings.json"
    text = json.dumps(settings, sort_keys=True, indent=1)
    if folder.exists() and not begun.exists() and any(folder.iterdir()):
        raise BadSetting(f"{folder} holds something else than a patch store: name an empty or a new folder")
    with writing(folder):
        (folder / "shards").mkdir(parents=True, exist_ok=True)
    if begun.exists() and begun.read_text() != text:
        raise BadSetting(f"{folder} was begun with other settings: use the same ones, or another --out")
    write_atomically(begun, text.encode())
    for left_over in [*folder.glob("*.tmp"), *(folder / "shards").glob("*.tmp")]:
        left_over.unlink()


def write_shard(folder: Path, key: str, patches: Patches, rows: Sequence[Row]) -> None:
    """Keep the patches of one source; its row file comes last, with a checksum, and says that it is whole."""
    content = io.BytesIO()
    np.save(content, patches, allow_pickle=False)
    write_atomically(folder / "shards" / f"{key}.npy", content.getvalue())
    shard = {"digest": digest(patches, rows), "rows": list(rows)}
    write_atomically(folder / "shards" / f"{key}.json", json.dumps(shard).encode())


def _lines(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode()


def _parse_lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def finished_keys(folder: Path) -> set[str]:
    """Keys of the sources that need no extraction: in a whole shard, or in the finished store."""
    shards = {path.stem for path in (folder / "shards").glob("*.json")}
    return shards | {source["key"] for source in _read_index(folder).get("sources", [])}


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
    file: Path
    start: int = 0

    def patches(self) -> Patches:
        mapped: Patches = np.load(self.file, mmap_mode="r")
        return mapped[self.start : self.start + len(self.rows)]


def _parts(folder: Path, keys: Sequence[str]) -> list[_Part]:
    """What there is of each key: its shard, or its place in the store as it was."""
    index = _read_index(folder)
    known = {source["key"]: source for source in index.get("sources", [])}
    old_rows = _parse_lines(folder / index["manifest"]) if index else []
    found = []
    for key in keys:
        shard = folder / "shards" / f"{key}.json"
        if shard.exists():
            whole = json.loads(shard.read_text())
            found.append(_Part(key, whole["digest"], whole["rows"], shard.with_suffix(".npy")))
        elif key in known:
            begin, end = known[key]["start"], known[key]["stop"]
            file = folder / index["patches"]
            found.append(_Part(key, known[key]["digest"], old_rows[begin:end], file, begin))
    return [part for part in found if part.rows]


def digest(patches: Patches, rows: Sequence[Row]) -> str:
    """Checksum of one source's patches and rows."""
    content = hashlib.sha256(_lines(rows))
    content.update(np.ascontiguousarray(patches).data)
    return content.hexdigest()


def finish(folder: Path, keys: Sequence[str], settings: Row, refused: Sequence[Refused]) -> Row:
    """Join the shards of the keys, in this order, to one store; give its index."""
    parts = _parts(folder, keys)
    rows = [row for part in parts for row in part.rows]
    if not rows:
        raise BadStore(f"no patch could be taken: {len(refused)} sources were refused, see `mammofed inspect`")
    beside = folder / f"patches.{os.getpid()}.tmp"
    _join(beside, parts, int(settings["patch"]))
    ends = np.cumsum([len(part.rows) for part in parts]).tolist()
    sources = [
        {"key": part.key, "start": end - len(part.rows), "stop": end, "digest": part.digest}
        for part, end in zip(parts, ends, strict=True)
    ]
    return _put_in_place(folder, beside, rows, {"settings": settings, "sources": sources, "refused": refused})


def _join(path: Path, parts: Sequence[_Part], size: int) -> None:
    """Write all patches after one .npy header, part by part, without holding them."""
    shape = (sum(len(part.rows) for part in parts), size, size)
    with writing(path), path.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, {"descr": "<u2", "fortran_order": False, "shape": shape})
        for part in parts:
            out.write(np.ascontiguousarray(part.patches(), "<u2").data)
        out.flush()
        os.fsync(out.fileno())


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


def refused_sources(folder: Path) -> list[Refused]:
    """What could not be extracted when the store was made, and why."""
    return [Refused(**one) for one in _read_index(folder).get("refused", [])]
