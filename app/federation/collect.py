"""The worker's orders to the engine's job itself: hold a meeting, or bring a site's file to the worker's disk.

Job and worker share the run's folder. A file that the job writes there passes no socket between them.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.federation.desk import Desk
from app.site.parts import Blocks, receive

ANSWER = 20.0  # seconds without any progress after which a part is asked for again
CallSite = Callable[[str, str, str, float], bytes]  # (site, order, text, timeout) → its answer, or any error
AskSite = Callable[[str, str, int, float, float], Blocks]  # (site, text, size, stall, seconds) → what it brings


def carry_out(desk: Desk, call: CallSite, near: AskSite, order: str, content: dict[str, Any]) -> bytes:
    """What the job itself is told."""
    return collect(call, near, Wanted(**content)) if order == "collect" else desk.take(order, content)


class TooLate(Exception):
    """The time for all parts is over; how many bytes have come."""


@dataclass(frozen=True)
class Wanted:
    """What a site has ready, where it is to be brought, and how long that may take."""

    run: str
    site: str
    what: str  # update or scores
    size: int  # bytes
    path: str  # of a new file
    silence: float  # seconds without an answer
    seconds: float  # in all


def collect(call: CallSite, near: AskSite, wanted: Wanted) -> bytes:
    """Bring so many bytes of a site to disk; their digest, or that the site is late or fell silent."""
    ends, patience = time.monotonic() + wanted.seconds, min(ANSWER, wanted.silence)

    def question(offset: int, size: int) -> str:
        return json.dumps({"run": wanted.run, "what": wanted.what, "offset": offset, "size": size})

    def left_at(offset: int) -> float:
        left = ends - time.monotonic()
        if left < 0:
            raise TooLate(offset)
        return left

    def ask(offset: int, size: int) -> Iterator[bytes | memoryview]:
        end = offset + size
        for block in near(wanted.site, question(offset, size), size, patience, left_at(offset)):
            left_at(offset)
            offset += len(block)
            yield block
        left_at(offset)
        if offset < end:
            yield ask_far(question(offset, end - offset))

    def ask_far(text: str) -> bytes:
        until = time.monotonic() + wanted.silence
        while True:
            try:
                return call(wanted.site, "send", text, patience)
            except Exception:  # whatever the engine raises, the part did not come
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    try:
        with Path(wanted.path).open("xb") as file:
            return json.dumps(receive(ask, wanted.size, file.write)).encode()
    except Exception as error:
        Path(wanted.path).unlink(missing_ok=True)
        told = {"late": error.args[0]} if isinstance(error, TooLate) else {"silent": str(error)}
        return json.dumps(told).encode()
