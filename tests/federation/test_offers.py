"""Models on offer: whole, under their digest, whatever was on offer before; a late reader harms nobody."""

from pathlib import Path

import pytest
import torch

from app.federation.desk import Desk
from app.federation.field import Field
from app.federation.terms import Terms
from app.site.parts import digest_of
from fl_core.plan import Plan
from fl_core.schedule import Schedule
from fl_core.state import ServerState
from fl_core.wire import pack
from mammofed.errors import TrainingFailed


class Nobody:
    def call(self, site: str, order: str, text: str, timeout: float) -> bytes:
        raise AssertionError


@pytest.fixture
def field(tmp_path: Path) -> Field:
    terms = Terms("run", Plan("fedavg", "tiny", Schedule(0.1)), ("a",), 1)
    return Field(terms, Nobody(), tmp_path, lambda site, told: None, lambda: None)


def state(seed: int, size: int = 5000) -> ServerState:
    return ServerState(1, {"w": torch.randn(size, generator=torch.Generator().manual_seed(seed))}, {}, {})


@pytest.mark.parametrize("next_size", [5000, 4000, 6000])
def test_the_last_model_alone_is_on_offer_and_a_late_reader_goes_on(field: Field, next_size: int) -> None:
    desk = Desk(field.folder / "offers")
    first = field.offer(state(1))
    late = desk.fetch(first["digest"], 0, first["bytes"])
    assert bytes(late) == pack(state(1))

    second = field.offer(state(2, next_size))
    assert len(bytes(late)) == first["bytes"]  # a file cut under its reader would kill this process
    found = Desk(field.folder / "offers").fetch(second["digest"], 0, second["bytes"])
    assert bytes(found) == pack(state(2, next_size))
    assert second == {"digest": digest_of(found), "bytes": len(found)}
    with pytest.raises((FileNotFoundError, TrainingFailed)):
        Desk(field.folder / "offers").fetch(first["digest"], 0, 8)


def test_the_same_model_is_not_written_again(field: Field) -> None:
    first = field.offer(state(1))
    path = field.folder / "offers" / first["digest"]
    before = path.stat()
    assert field.offer(state(1)) == first
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_what_a_killed_worker_left_half_written_is_not_offered(field: Field) -> None:
    offers = field.folder / "offers"
    offers.mkdir()
    (offers / ".writing").write_bytes(b"half" * 99999)
    found = field.offer(state(1))
    assert (offers / found["digest"]).read_bytes() == pack(state(1))
    assert [path.name for path in offers.iterdir()] == [found["digest"]]
