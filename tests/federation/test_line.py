"""Lines between sites and the engine's job: bytes both ways for the job's own sites, and for nobody else."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.federation.line import (
    ANSWER,
    BLOCK,
    IS_ASKED,
    QUESTION,
    WORD,
    Caller,
    Lines,
    Tunnel,
    context_of,
    open_port,
)
from app.federation.provision import Federation, create
from app.processes import free_port
from app.site.kit import unpack_kit
from tests.federation.hospitals import until

SITE, OTHER = "hospital-1", "hospital-2"
CONTENT = bytes(range(256)) * (3 * BLOCK // 256) + b"end"
Dial = Callable[[str], Caller]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("lines")
    create(found / "federation", Federation("lines", "localhost", free_port(), (SITE, OTHER)))
    for site in (SITE, OTHER):
        unpack_kit(found / "federation" / "kits" / f"{site}.zip", found / site)
    return found


@pytest.fixture
def lines(folder: Path) -> Iterator[Lines]:
    """A job of the first site alone."""
    listener = open_port("localhost", free_port())
    found = Lines(listener, folder / "federation" / "server" / "startup", {SITE}, take)
    yield found
    found.close()


@pytest.fixture
def dial(lines: Lines, folder: Path) -> Dial:
    return lambda site: Caller(folder / site / "kit" / "startup", "localhost", lines.port, lines.word, take)


def take(question: str) -> memoryview:
    return memoryview(CONTENT)[int(question) :]


def test_both_ends_ask_and_are_answered(lines: Lines, dial: Dial) -> None:
    caller = dial(SITE)
    until(lambda: SITE in lines.lines, 10, "the line")
    for offset in (0, 5, len(CONTENT)):
        assert b"".join(map(bytes, lines.ask(SITE, str(offset), len(CONTENT)))) == CONTENT[offset:]
        assert b"".join(map(bytes, caller.ask(str(offset), len(CONTENT)))) == CONTENT[offset:]


def test_who_has_no_part_in_the_job_gets_no_line(lines: Lines, dial: Dial) -> None:
    caller = dial(OTHER)
    until(lambda: caller.line is not None, 10, "the other site's connection")
    assert b"".join(map(bytes, caller.ask("0", len(CONTENT)))) == b""
    assert b"".join(map(bytes, lines.ask(OTHER, "0", len(CONTENT)))) == b""


def test_who_shows_no_certificate_is_hung_up_on(lines: Lines, folder: Path) -> None:
    root = folder / SITE / "kit" / "startup" / "rootCA.pem"
    context = ssl.create_default_context(cafile=str(root))
    with (
        socket.create_connection(("localhost", lines.port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as end,
        pytest.raises(ssl.SSLError, match="certificate required"),
    ):
        end.recv(1)
    assert not lines.lines


def test_more_than_was_asked_for_is_not_received_and_ends_the_line(lines: Lines, dial: Dial) -> None:
    dial(SITE)
    until(lambda: SITE in lines.lines, 10, "the line")
    assert b"".join(map(bytes, lines.ask(SITE, "0", 10))) == b""
    assert b"".join(map(bytes, lines.ask(SITE, "0", len(CONTENT)))) == b""


def test_a_lost_line_is_dialled_again(lines: Lines, dial: Dial) -> None:
    dial(SITE)
    until(lambda: SITE in lines.lines, 10, "the line")
    first = lines.lines[SITE]
    coming = lines.ask(SITE, "0", len(CONTENT))
    next(coming)
    coming.close()  # type: ignore[attr-defined]
    until(lambda: lines.lines[SITE] is not first, 10, "the next line")
    assert b"".join(map(bytes, lines.ask(SITE, "0", len(CONTENT)))) == CONTENT


def test_who_does_not_know_the_jobs_word_gets_no_line(lines: Lines, folder: Path) -> None:
    caller = Caller(folder / SITE / "kit" / "startup", "localhost", lines.port, bytes(WORD), take)
    until(lambda: caller.line is not None, 10, "the connection of another job's process")
    assert b"".join(map(bytes, caller.ask("0", len(CONTENT)))) == b""
    assert not lines.lines


def test_who_trickles_is_no_better_than_who_is_silent(lines: Lines, folder: Path) -> None:
    startup = folder / SITE / "kit" / "startup"
    plain = socket.create_connection(("localhost", lines.port), 10)
    end = Tunnel(context_of(ssl.Purpose.SERVER_AUTH, startup, "client"), plain, "localhost")
    end.send(IS_ASKED + lines.word)
    until(lambda: SITE in lines.lines, 10, "the line")
    trickling, done = threading.Event(), threading.Event()

    def trickle() -> None:
        end.take(QUESTION.size)
        end.send(ANSWER.pack(len(CONTENT)))
        while not done.wait(0.05):  # always something, never much
            with suppress(OSError):
                end.send(b".")
            trickling.set()

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        assert list(lines.ask(SITE, "0", len(CONTENT), stall=10.0, seconds=1.0)) == []
        assert trickling.is_set()
        with pytest.raises(OSError, match=r".*"):  # and has been hung up on
            lines.lines[SITE].end.plain.getpeername()
    finally:
        done.set()
        thread.join()
        end.close()


def test_a_second_line_of_a_site_replaces_its_first(lines: Lines, dial: Dial) -> None:
    dial(SITE)
    until(lambda: SITE in lines.asked, 10, "the first")
    taken = lines.asked[SITE]
    second = dial(SITE)
    until(lambda: lines.asked[SITE] is not taken and second.line is not None, 10, "the second")
    assert b"".join(map(bytes, second.ask("0", len(CONTENT)))) == CONTENT
    assert taken.plain.fileno() < 0


def test_who_says_that_no_more_comes_is_not_waited_for(lines: Lines, dial: Dial) -> None:
    caller = dial(SITE)
    until(lambda: SITE in lines.lines and caller.line is not None, 10, "the line")
    first = lines.lines[SITE].end
    with pytest.raises(ssl.SSLWantReadError):
        first.tls.unwrap()
    first.plain.sendall(first.goes.read())
    until(lambda: lines.lines[SITE].end is not first, 10, "the next line")


def test_a_shut_port_costs_nothing(folder: Path) -> None:
    began = time.monotonic()
    caller = Caller(folder / SITE / "kit" / "startup", "localhost", free_port(), bytes(WORD), take)
    assert b"".join(map(bytes, caller.ask("0", len(CONTENT)))) == b""
    assert time.monotonic() - began < 1
