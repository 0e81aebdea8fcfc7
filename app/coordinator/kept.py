"""Answers that many ask for again and again → bytes, made once and kept; 304 to those who have them."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from fastapi import Request, Response

KEPT = 256  # answers


class KeptAnswers:
    """The answers that were asked for last, by what decides them."""

    def __init__(self) -> None:
        self.bodies: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self.lock = threading.Lock()

    def answer(self, request: Request, key: tuple[object, ...], make: Callable[[], bytes]) -> Response:
        """The JSON of that key, or 304 where the caller has it already."""
        tag = f'"{"-".join(map(str, key))}"'
        headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(self.made(key, make), media_type="application/json", headers=headers)

    def made(self, key: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
        """The answer's bytes, made if they are not there."""
        with self.lock:
            if key in self.bodies:
                self.bodies.move_to_end(key)
                return self.bodies[key]
        body = make()
        with self.lock:
            self.bodies[key] = body
            while len(self.bodies) > KEPT:
                self.bodies.popitem(last=False)
        return body
