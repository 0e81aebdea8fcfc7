"""Large files part by part: the same bytes at the other end, whatever is rewritten, lost or cut short."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from app.federation.collect import AskSite, Wanted, collect
from app.federation.field import Field, fetch
from app.federation.link import SiteSilent
from app.federation.terms import Terms
from app.site import parts
from app.site.data import SiteSettings
from app.site.parts import joined, receive
from app.site.work import SiteWork
from fl_core.aggregate import BadUpdate
from tests.federation.hospitals import small_plan

CONTENT = bytes(range(256)) * 10
Call = Callable[[str, str, str, float], bytes]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART", 1000)


def test_bytes_arrive_as_they_were_sent() -> None:
    asked: list[tuple[int, int]] = []
    source, arrived = joined([CONTENT[:7], memoryview(CONTENT)[7:]]), bytearray()

    def ask(offset: int, size: int) -> list[memoryview]:
        asked.append((offset, size))
        part = memoryview(source)[offset : offset + size]
        return [part[:300], part[300:]]

    got = receive(ask, len(CONTENT), arrived.extend)
    assert arrived == CONTENT
    assert got == {"digest": blake3(CONTENT).hexdigest(), "bytes": len(CONTENT)}
    assert asked == [(0, 1000), (1000, 1000), (2000, 560)]


def test_a_short_part_is_the_last() -> None:
    arrived = bytearray()
    got = receive(lambda offset, size: [CONTENT[offset : offset + min(size, 400)]], len(CONTENT), arrived.extend)
    assert got["bytes"] == len(arrived) == 400


def test_a_part_that_is_being_sent_is_not_disturbed_by_the_next_update(tmp_path: Path) -> None:
    work = SiteWork(tmp_path, SiteSettings("hospital-1", "synthetic:1/2"), None, None)  # type: ignore[arg-type]
    order = {"what": "update", "offset": 0, "size": len(CONTENT)}
    assert work.leave("update", [CONTENT[:9], CONTENT[9:]]) == told_of(CONTENT)
    under_way = work.send(order)
    work.leave("update", [b"shorter"])
    assert bytes(under_way) == CONTENT
    assert bytes(work.send(order)) == b"shorter"


class OneSite:
    """A job whose one site answers as told, and has a line that may bring something."""

    def __init__(self, answer: Call, near: AskSite) -> None:
        self.answer, self.near = answer, near

    def call(self, site: str, order: str, text: str, timeout: float) -> bytes:
        return collect(self.answer, self.near, Wanted(**json.loads(text)))


def field_of(folder: Path, answer: Call, near: AskSite = lambda *_: ()) -> Field:
    terms = Terms("run-1", small_plan("fedavg"), ("hospital-1",), quorum=1, silence=0.1)
    return Field(terms, OneSite(answer, near), folder, lambda site, told: None, lambda: None)


def told_of(content: bytes) -> dict[str, object]:
    return {"digest": blake3(content).hexdigest(), "bytes": len(content)}


def sent(site: str, order: str, text: str, timeout: float) -> bytes:
    asked = json.loads(text)
    assert (site, order, asked["run"], asked["what"]) == ("hospital-1", "send", "run-1", "update")
    return CONTENT[asked["offset"] : asked["offset"] + asked["size"]]


def test_a_lost_part_is_asked_for_again(tmp_path: Path) -> None:
    lost = [1000, 2000]

    def answer(site: str, order: str, text: str, timeout: float) -> bytes:
        if json.loads(text)["offset"] in lost:
            lost.remove(json.loads(text)["offset"])
            raise SiteSilent("lost on the way")
        return sent(site, order, text, timeout)

    path = tmp_path / "hospital-1.update"
    fetch(field_of(tmp_path, answer), "hospital-1", "update", told_of(CONTENT), path, len(CONTENT))
    assert path.read_bytes() == CONTENT
    assert lost == []


def test_what_a_line_does_not_bring_comes_through_the_engine(tmp_path: Path) -> None:
    far: list[tuple[int, int]] = []

    def near(site: str, text: str, size: int, stall: float, seconds: float) -> Iterator[bytes]:
        part = sent(site, "send", text, 1.0)
        yield part[:100]
        yield part[100:700]  # and then it is lost

    def answer(site: str, order: str, text: str, timeout: float) -> bytes:
        asked = json.loads(text)
        far.append((asked["offset"], asked["size"]))
        return sent(site, order, text, timeout)

    path = tmp_path / "hospital-1.update"
    fetch(field_of(tmp_path, answer, near), "hospital-1", "update", told_of(CONTENT), path, len(CONTENT))
    assert path.read_bytes() == CONTENT
    assert far == [(700, 300), (1700, 300)]


def test_a_site_that_falls_silent_between_parts_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    def answer(site: str, order: str, text: str, timeout: float) -> bytes:
        if json.loads(text)["offset"]:
            raise SiteSilent("nobody there")
        return sent(site, order, text, timeout)

    path = tmp_path / "hospital-1.update"
    with pytest.raises(SiteSilent, match="no update from hospital-1"):
        fetch(field_of(tmp_path, answer), "hospital-1", "update", told_of(CONTENT), path, len(CONTENT))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("told", [told_of(CONTENT + b"more"), told_of(CONTENT[::-1])])
def test_what_was_not_announced_does_not_take_the_place_of_an_update(
    told: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "hospital-1.update"
    path.write_bytes(b"before")
    with pytest.raises(BadUpdate, match="hospital-1"):
        fetch(field_of(tmp_path, sent), "hospital-1", "update", told, path, 2 * len(CONTENT))
    assert path.read_bytes() == b"before"
