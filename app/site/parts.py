"""A large file at one end of a call ↔ the same file at the other, part by part, never whole in memory.

A part is larger than the 10 MiB from which NVFlare sends bytes as they are, beside its message and not packed into
it: one copy less at each end.
"""

import hashlib
import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PART = 16 << 20  # bytes
Ask = Callable[[int, int], bytes | memoryview]  # (offset, size) → that part, or less of it


def mapped(path: Path) -> memoryview:
    """A file that nobody writes to any more, not read: NVFlare copies what it sends anyway."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # the last view unmaps it


def receive(ask: Ask, size: int, path: Path) -> dict[str, Any]:
    """Write so many bytes to a new file; how many came, and their digest."""
    digest, got = hashlib.sha256(), 0
    path.unlink(missing_ok=True)  # and not overwritten: who has mapped it keeps what he has
    with path.open("xb") as file:
        for part in one_ahead(ask, size):
            digest.update(part)
            file.write(part)
            got += len(part)
    return {"sha256": digest.hexdigest(), "bytes": got}


def one_ahead(ask: Ask, size: int) -> Iterator[bytes | memoryview]:
    """The parts in turn, each asked for while the one before is used; a short one is the last."""
    with ThreadPoolExecutor(1) as pool:
        offset, asked = 0, pool.submit(ask, 0, min(PART, size))
        while offset < size:
            wanted = min(PART, size - offset)
            part = asked.result()
            offset += len(part)
            if len(part) == wanted and offset < size:
                asked = pool.submit(ask, offset, min(PART, size - offset))
            yield part
            if len(part) != wanted:
                return
