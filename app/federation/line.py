"""A site's process ↔ the engine's job, on TLS connections of their own: the short way of large files.

NVFlare carries each frame through its server, in Python. The site dials a port that the job has told it, with
NVFlare's certificates; on one connection it asks, on the other it is asked. No line is ever needed: what it does
not bring, since the port is shut or the connection fails, comes through NVFlare.
"""

import hmac
import logging
import math
import secrets
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.x509.oid import NameOID

log = logging.getLogger(__name__)
Take = Callable[[str], bytes | memoryview]  # question → answer

PORTS = 16  # after the federation's own: one for each job at the same time
BLOCK = 1 << 18  # bytes handed on at a time: they stay in the processor's cache
QUESTION, ANSWER = struct.Struct("!H"), struct.Struct("!Q")  # how many bytes follow
ASKS, IS_ASKED = b"a", b"b"  # what a site says first
WORD = 16  # bytes that a job tells its sites through NVFlare, and they say next: a job before it had another
HANDSHAKES = 64  # at a time
DIAL = 5.0  # seconds for a connection and its handshake
STALL = 20.0  # seconds without any byte after which a line is given up
IDLE = 30  # seconds after which a line that says nothing is tested
PAUSE = 1.0  # seconds before a lost line is dialled again


class Tunnel:
    """TLS on a socket, many of its records at a time: Python's own asks the kernel for each one twice."""

    def __init__(self, context: ssl.SSLContext, plain: socket.socket, server: str | None = None) -> None:
        """Shake hands as a client of that server, or as the server."""
        self.plain = plain
        self.came, self.goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.came, self.goes, server_side=server is None, server_hostname=server)
        self.block = memoryview(bytearray(BLOCK))
        self.allow(DIAL, DIAL)
        try:
            self.complete(self.tls.do_handshake)
        except OSError:
            plain.close()
            raise

    def allow(self, stall: float, seconds: float = math.inf) -> None:
        """How long nothing may come, and how long it may all take from now on: who trickles is no better."""
        self.stall, self.ends = stall, time.monotonic() + seconds

    def receive(self) -> int:
        """Wait for bytes, as long as is allowed; how many came."""
        wait = min(self.stall, self.ends - time.monotonic())
        if wait <= 0:
            raise TimeoutError("the other end is too slow")
        self.plain.settimeout(wait if wait < math.inf else None)
        return self.plain.recv_into(self.block)

    def complete(self, step: Callable[..., Any], *args: Any) -> Any:
        """Take a step of TLS, which may want to send and to receive."""
        while True:
            try:
                try:
                    return step(*args)
                finally:
                    if self.goes.pending:  # also where it fails: why
                        self.plain.sendall(self.goes.read())
            except ssl.SSLWantReadError:
                got = self.receive()
                if not got:
                    raise ConnectionError("the other end has hung up") from None
                self.came.write(self.block[:got])

    def fill(self, view: memoryview) -> memoryview:
        """Receive until the view is full."""
        left = view
        while left:
            got = self.complete(self.tls.read, len(left), left)
            if not got:
                raise ConnectionError("the other end has said that no more comes")
            left = left[got:]
        return view

    def take(self, size: int) -> bytes:
        """Receive so many bytes."""
        return bytes(self.fill(memoryview(bytearray(size))))

    def send(self, data: bytes | memoryview) -> None:
        """Send it all."""
        view = memoryview(data)
        for start in range(0, len(view), BLOCK):
            self.complete(self.tls.write, view[start : start + BLOCK])

    def close(self) -> None:
        """Hang up; whoever waits for bytes is woken."""
        with suppress(OSError):
            self.plain.shutdown(socket.SHUT_RDWR)
        self.plain.close()


class Line:
    """The end that asks, one question at a time."""

    def __init__(self, end: Tunnel) -> None:
        self.end, self.asking = end, threading.Lock()
        self.block = memoryview(bytearray(BLOCK))

    def ask(
        self, question: str, most: int, stall: float = STALL, seconds: float = math.inf
    ) -> Iterator[memoryview]:
        """The answer block by block, each valid until the next; where the line fails, what came until then."""
        with self.asking:
            is_whole = False
            try:
                self.end.allow(stall, seconds)
                left = self.size_of_answer(question, most)
                while left:
                    block = self.block[:left]
                    self.end.fill(block)
                    left -= len(block)
                    yield block
                is_whole = True
            except OSError as error:
                log.info("line lost (%s)", error)
            finally:
                if not is_whole:
                    self.end.close()

    def close(self) -> None:
        """Hang up, once nobody asks any more."""
        with self.asking:
            self.end.close()

    def size_of_answer(self, question: str, most: int) -> int:
        """Ask; how many bytes come."""
        text = question.encode()
        self.end.send(QUESTION.pack(len(text)) + text)
        size: int = ANSWER.unpack(self.end.take(ANSWER.size))[0]
        if size > most:
            raise ConnectionError(f"{size} bytes announced, {most} asked for")
        return size


def answer(end: Tunnel, take: Take) -> None:
    """The end that is asked: answer until the other one hangs up."""
    end.allow(math.inf)
    try:
        while True:
            [size] = QUESTION.unpack(end.take(QUESTION.size))
            found = take(end.take(size).decode())
            end.send(ANSWER.pack(len(found)))
            end.send(found)
    except Exception as error:  # whatever the other end asks for, only its own line ends
        log.info("line ended (%s)", error)
    finally:
        end.close()


End = TypeVar("End", Tunnel, Line)


class Lines:
    """The job's ends of all lines."""

    def __init__(self, listener: socket.socket, startup: Path, sites: Collection[str], take: Take) -> None:
        self.listener, self.sites, self.take = listener, sites, take
        self.context = context_of(ssl.Purpose.CLIENT_AUTH, startup, "server")
        self.lines: dict[str, Line] = {}
        self.asked: dict[str, Tunnel] = {}
        self.word = secrets.token_bytes(WORD)
        self.shaking = threading.Semaphore(HANDSHAKES)
        threading.Thread(target=self.accept, daemon=True, name="lines").start()

    @property
    def port(self) -> int:
        """Where sites dial."""
        port: int = self.listener.getsockname()[1]
        return port

    def ask(
        self, site: str, question: str, most: int, stall: float = STALL, seconds: float = math.inf
    ) -> Iterator[memoryview]:
        """Ask a site; nothing comes where it has no line."""
        line = self.lines.get(site)
        return line.ask(question, most, stall, seconds) if line else iter(())

    def accept(self) -> None:
        """Take in whoever dials, each in a thread of its own."""
        while self.listener.fileno() >= 0:  # not closed
            self.shaking.acquire()
            try:
                threading.Thread(target=self.take_in, args=(self.listener.accept()[0],), daemon=True).start()
            except (OSError, RuntimeError) as error:  # also where there are too many files or threads just now
                self.shaking.release()
                log.info("nobody taken in (%s)", error)
                time.sleep(PAUSE)

    def take_in(self, dialled: socket.socket) -> None:
        """Serve a site of this job, which its certificate and the job's own word show; hang up on any other."""
        try:
            end = Tunnel(self.context, dialled)
            site, wish, word = common_name(end.tls), end.take(1), end.take(WORD)
        except (OSError, LookupError) as error:
            log.info("no line (%s)", error)
            return dialled.close()
        finally:
            self.shaking.release()
        keep_alive(dialled)
        if site not in self.sites or not hmac.compare_digest(word, self.word):
            end.close()
        elif wish == ASKS:
            replace(self.asked, site, end)
            answer(end, self.take)
        else:
            replace(self.lines, site, Line(end))

    def close(self) -> None:
        """Hang up on all."""
        self.listener.shutdown(socket.SHUT_RDWR)  # which wakes `accept`
        self.listener.close()
        for end in (*(line.end for line in self.lines.values()), *self.asked.values()):
            end.close()


def replace(ends: dict[str, End], site: str, end: End) -> None:
    """A site's newest end takes the place of the one before, which is closed."""
    before, ends[site] = ends.get(site), end
    if before is not None:
        before.close()


def open_port(host: str, own: int) -> socket.socket:
    """Listen at the first free port after the federation's own, else at any; for localhost on loopback alone."""
    address = "127.0.0.1" if host == "localhost" else ""
    for port in range(own + 1, own + 1 + PORTS):
        with suppress(OSError, OverflowError):
            return socket.create_server((address, port))
    return socket.create_server((address, 0))


class Caller:
    """The site's ends of its two lines to the job."""

    def __init__(self, startup: Path, host: str, port: int, word: bytes, take: Take) -> None:
        self.context = context_of(ssl.Purpose.SERVER_AUTH, startup, "client")
        self.host, self.port, self.word, self.take = host, port, word, take
        self.line: Line | None = None
        threading.Thread(target=self.keep, daemon=True, name="line").start()

    def keep(self) -> None:
        """Dial, and again after a loss; a job that cannot be dialled is left alone."""
        with suppress(OSError):
            while True:
                self.line = Line(self.dial(ASKS))
                answer(self.dial(IS_ASKED), self.take)
                self.line.close()
                time.sleep(PAUSE)

    def dial(self, wish: bytes) -> Tunnel:
        """A connection on which the job is told who asks whom."""
        plain = socket.create_connection((self.host, self.port), DIAL)
        keep_alive(plain)
        end = Tunnel(self.context, plain, self.host)
        end.send(wish + self.word)
        return end

    def ask(self, question: str, most: int) -> Iterator[memoryview]:
        """Ask the job; nothing comes while there is no line."""
        return self.line.ask(question, most) if self.line else iter(())


def context_of(purpose: ssl.Purpose, startup: Path, who: str) -> ssl.SSLContext:
    """Mutual TLS with the certificates of a participant's startup folder."""
    context = ssl.create_default_context(purpose, cafile=str(startup / "rootCA.pem"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(startup / f"{who}.crt", startup / f"{who}.key")
    return context


def common_name(end: ssl.SSLObject) -> str:
    """Whom the other end's certificate names."""
    certificate = x509.load_der_x509_certificate(end.getpeercert(binary_form=True) or b"")
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def keep_alive(end: socket.socket) -> None:
    """Send what is written at once, and find out that the other end has gone."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE)
