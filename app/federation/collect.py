"""The worker's orders to the engine's job itself: hold a meeting, or bring a site's file to the worker's disk.

Job and worker share the run's folder. A file that the job writes there passes no socket between them.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app.federation.desk import Desk
from app.site.parts import Blocks, receive

ANSWER = 20.0  # seconds without any progress after which a part is asked for again
CallSite = Callable[[str, str, str, float], bytes]  # (site, order, text, timeout) → its answer, or any error
AskSite = Callable[[str, str, int, float], Blocks]  # (site, text, size, stall) → what its line brings of a part


def carry_out(desk: Desk, call: CallSite, near: AskSite, order: str, content: dict[str, Any]) -> bytes:
    """What the job itself is told."""
    return collect(call, near, **content) if order == "collect" else desk.take(order, content)


class TooLate(Exception):
    """The time for all parts is over; how many bytes have come."""


def collect(
    call: CallSite,
    near: AskSite,
    run: str,
    site: str,
    what: str,
    size: int,
    path: str,
    silence: float,
    seconds: float,
) -> bytes:
    """Bring so many bytes of a site to disk; their digest, or that the site is late or fell silent."""
    ends, patience = time.monotonic() + seconds, min(ANSWER, silence)

    def question(offset: int, size: int) -> str:
        return json.dumps({"run": run, "what": what, "offset": offset, "size": size})

    def ask(offset: int, size: int) -> Iterator[bytes | memoryview]:
        end = offset + size
        if time.monotonic() > ends:
            raise TooLate(offset)
        for block in near(site, question(offset, size), size, patience):
            if time.monotonic() > ends:
                raise TooLate(offset)
            offset += len(block)
            yield block
        if offset < end:
            yield ask_far(question(offset, end - offset))

    def ask_far(text: str) -> bytes:
        until = time.monotonic() + silence
        while True:
            try:
                return call(site, "send", text, patience)
            except Exception:  # whatever the engine raises, the part did not come
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    try:
        with Path(path).open("xb") as file:
            return json.dumps(receive(ask, size, file.write)).encode()
    except Exception as error:
        Path(path).unlink(missing_ok=True)
        told = {"late": error.args[0]} if isinstance(error, TooLate) else {"silent": str(error)}
        return json.dumps(told).encode()
