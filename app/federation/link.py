"""A run's worker ↔ the engine's job process, on one machine: calls on sites as frames on a Unix socket.

A frame is two lengths, a JSON header and raw bytes; nothing is pickled. The worker's end is `Link`; the engine's
end, `serve`, carries each call out in a thread of its own, so that a slow site delays no other.
"""

import itertools
import json
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from mammofed.errors import TrainingFailed

SIZES = struct.Struct("!IQ")  # bytes of header and body
SLACK = 10.0  # seconds that an answer may take beyond the call's own timeout
THREADS = 128  # calls under way at once

Header = dict[str, Any]


class SiteSilent(TrainingFailed):
    """A site, or the way to it, gave no answer in time."""


class LinkLost(TrainingFailed):
    """The engine's job is gone; the last committed round stays."""


class EngineDown(TrainingFailed):
    """The engine cannot be reached, or starts no job; it is tried again."""


class JobFailed(EngineDown):
    """The engine is there, but its job with these sites does not begin."""


class Calls(Protocol):
    """Whoever can carry a call to a site."""

    def call(self, site: str, order: str, text: str, timeout: float) -> bytes:
        """The site's answer, or SiteSilent, or LinkLost."""


def send_frame(end: socket.socket, header: Header, body: bytes = b"") -> None:
    """Write one frame; the caller keeps others from writing at the same time."""
    text = json.dumps(header).encode()
    end.sendall(SIZES.pack(len(text), len(body)) + text)
    if body:
        end.sendall(body)


def receive_frame(end: socket.socket) -> tuple[Header, bytes] | None:
    """Read one frame; None where the other end has gone."""
    try:
        sizes = receive_exactly(end, SIZES.size)
        if sizes is None:
            return None
        text, body = (receive_exactly(end, size) for size in SIZES.unpack(sizes))
    except OSError:
        return None
    return None if text is None or body is None else (json.loads(text), body)


def receive_exactly(end: socket.socket, size: int) -> bytes | None:
    """So many bytes; None where they do not come."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = end.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return bytes(data)


class Link:
    """The worker's end: calls from any thread, each waiting for its own answer."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.numbers = itertools.count()
        self.sending = threading.Lock()
        self.waiting: dict[int, Future[tuple[Header, bytes]]] = {}
        self.lost = False
        self.reader = threading.Thread(target=self.read, daemon=True, name="link")
        self.reader.start()

    def read(self) -> None:
        """Hand each answer to the call that waits for it, until the other end has gone."""
        while (frame := receive_frame(self.end)) is not None:
            waiting = self.waiting.pop(frame[0]["number"], None)
            if waiting is not None:
                waiting.set_result(frame)
        self.lost = True
        for waiting in list(self.waiting.values()):
            if not waiting.done():
                waiting.set_exception(LinkLost("the engine's job has gone"))

    def call(self, site: str, order: str, text: str, timeout: float) -> bytes:
        """Ask a site; the empty name is the job itself."""
        number, answer = next(self.numbers), Future[tuple[Header, bytes]]()
        self.waiting[number] = answer
        header = {"number": number, "site": site, "order": order, "timeout": timeout}
        try:
            with self.sending:
                send_frame(self.end, header, text.encode())
        except OSError as error:
            raise LinkLost("the engine's job has gone") from error
        if self.lost:
            raise LinkLost("the engine's job has gone")
        try:
            found, body = answer.result(timeout + SLACK)
        except TimeoutError as error:
            raise SiteSilent(f"no answer from {site or 'the job'} to {order!r}") from error
        finally:
            self.waiting.pop(number, None)
        if "failed" in found:
            raise SiteSilent(f"no answer from {site or 'the job'} to {order!r} ({found['failed']})")
        return body

    def close(self) -> None:
        """Hang up; the job ends."""
        self.end.close() if self.lost else self.end.shutdown(socket.SHUT_RDWR)
        self.reader.join()
        self.end.close()


def serve(end: socket.socket, call: Callable[[str, str, str, float], bytes]) -> None:
    """The engine's end: carry out calls until the worker hangs up."""
    sending = threading.Lock()

    def carry_out(header: Header, body: bytes) -> None:
        answer: Header = {"number": header["number"]}
        result = b""
        try:
            result = call(header["site"], header["order"], body.decode(), header["timeout"])
        except Exception as error:  # whatever the engine raises, it means that the site did not answer
            answer["failed"] = str(error)
        with sending:
            try:
                send_frame(end, answer, result)
            except OSError:
                return  # the worker has gone; `serve` sees it too

    pool = ThreadPoolExecutor(THREADS)
    while (frame := receive_frame(end)) is not None:
        pool.submit(carry_out, *frame)
    pool.shutdown(wait=False, cancel_futures=True)  # nobody waits for what is still under way
