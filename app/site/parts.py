"""A large file at one end of a call ↔ the same bytes at the other, part by part.

A part is larger than the 10 MiB from which NVFlare sends bytes as they are, beside its message and not packed into
it: one copy less at each end. A file is known by its BLAKE3 digest, which costs an eighth of SHA-256's time.
"""

import mmap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

PART = 16 << 20  # bytes
Blocks = Iterable[bytes | memoryview]  # each is used before the next is asked for
Ask = Callable[[int, int], Blocks]  # (offset, size) → that part, or less of it


def mapped(path: Path) -> memoryview:
    """A file that nobody writes to any more, not read: NVFlare copies what it sends anyway."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # the last view unmaps it


def digest_of(*parts: bytes | memoryview) -> str:
    """What the parts, one after the other, are known by on their way."""
    found = blake3()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def receive(ask: Ask, size: int, keep: Callable[[bytes | memoryview], object]) -> dict[str, Any]:
    """Keep so many bytes, block by block; how many came, and their digest."""
    digest, got = blake3(), 0
    while got < size:
        end = min(got + PART, size)
        for block in ask(got, end - got):
            digest.update(block)
            keep(block)
            got += len(block)
        if got != end:
            break  # a short part is the last
    return {"digest": digest.hexdigest(), "bytes": got}


def memory_of(size: int) -> mmap.mmap:
    """So many bytes, in huge pages where there are any: small ones take longer to be had than to be filled."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def joined(parts: Sequence[bytes | memoryview]) -> mmap.mmap:
    """Parts one after the other, in one memory."""
    memory = memory_of(sum(map(len, parts)))
    for part in parts:
        memory.write(part)
    return memory
