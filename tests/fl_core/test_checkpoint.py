"""Checkpoints: what is read is what was written, damage is found, and a kill at any moment costs nothing."""

import json
import logging
import multiprocessing
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_core import checkpoint as module
from fl_core.checkpoint import Checkpoint, DamagedCheckpoint, read_latest, read_records, write_checkpoint
from fl_core.state import ServerState, SiteState, Update
from fl_core.wire import pack, tensor_parts, unpack, unpack_file
from mammofed.errors import BadData
from tests.fl_core.killable import ROUNDS, train_tiny
from tests.laws.toy import assert_same

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]
tensors = st.dictionaries(
    st.text(min_size=1, max_size=12),
    st.builds(
        lambda shape, dtype, seed: (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 9).to(
            dtype
        ),
        st.lists(st.integers(0, 4), max_size=3),
        st.sampled_from(DTYPES),
        st.integers(0, 99),
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(tensors, tensors, tensors, st.integers(0, 2**53), st.floats(allow_nan=False, allow_infinity=False))
def test_packing_round_trips(model: Any, c: Any, k: Any, number: int, loss: float) -> None:
    update = Update("site, with a name", number, 3, 2, loss, model, c, k)
    got = unpack(Update, pack(update))
    assert (got.site, got.round, got.loss) == (update.site, update.round, update.loss)
    for group in ("model", "c", "k"):
        assert_same(getattr(got, group), getattr(update, group))
    assert pack(got) == pack(update)


def test_a_file_is_used_where_it_lies(tmp_path: Path) -> None:
    model = {
        "bias": torch.randn(5),
        "counter": torch.tensor(7),
        "half": torch.randn(3).half(),
        "w": torch.randn(3, 4),
    }
    update = Update("a", 1, 3, 2, 0.5, model, {"w": torch.randn(3, 4)}, {})
    path = tmp_path / "update"
    path.write_bytes(pack(update))
    got = unpack_file(Update, path)
    path.unlink()
    assert pack(got) == pack(update)
    assert_same(got.model, model)
    places = [tensor.data_ptr() for tensor in (*got.model.values(), *got.c.values())]
    assert max(places) - min(places) < len(pack(update))  # one mapping, no copies
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in got.model.values())


@pytest.mark.parametrize("data", [b"", b"12345678", b"\xff" * 64, pack(SiteState())[:-1]])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadData, match="no packed ServerState"):
        unpack(ServerState, data)


@pytest.mark.parametrize("data", [b"", b"12345678", b"\xff" * 64, pack(SiteState())[:-1]])
def test_a_file_of_other_bytes_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(data)
    with pytest.raises(BadData, match="no packed ServerState"):
        unpack_file(ServerState, tmp_path / "state")


@pytest.mark.parametrize(
    "lie",
    [
        {"data_offsets": [0, 4000]},
        {"data_offsets": [-8, 32]},
        {"data_offsets": [8, 48]},
        {"data_offsets": [0, 40, 80]},
        {"shape": [-10]},
        {"shape": [10.0]},
        {"shape": [2**62, 2**62]},
        {"dtype": "F64"},
        {"dtype": "F1"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_header_that_lies_is_refused(lie: dict[str, Any], tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [10], "data_offsets": [0, 40], **lie}
    fields = json.dumps({"round": 1, "c": {}, "k": {}})
    text = json.dumps({"__metadata__": {"fields": fields}, "model/w": entry}).encode()
    (tmp_path / "state").write_bytes(len(text).to_bytes(8, "little") + text + bytes(40))
    with pytest.raises(BadData, match="no packed ServerState"):
        unpack_file(ServerState, tmp_path / "state")


@pytest.mark.parametrize("fields", ["5", "[]", '{"round": 1, "other": 2}'])
def test_other_fields_are_refused(fields: str) -> None:
    with pytest.raises(BadData, match="ServerState"):
        unpack(ServerState, b"".join(tensor_parts({}, {"fields": fields})))


def test_site_states_are_read_when_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, moment(1))
    read: list[type] = []

    def seen(kind: Any, data: bytes) -> Any:
        read.append(kind)
        return unpack(kind, data)

    monkeypatch.setattr(module, "unpack", seen)
    got = read_latest(tmp_path)
    assert read == [ServerState]
    assert_is(got, 1)
    assert SiteState in read


def moment(number: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(number)
    model = {"w": torch.randn(50, generator=generator), "n": torch.tensor(number)}
    site = SiteState(batches=number, c={"w": torch.randn(50, generator=generator)})
    return Checkpoint(ServerState(number, model), {"a": site}, {"round": number}, {"plan": {"seed": 1}})


def assert_is(got: Checkpoint | None, number: int) -> None:
    assert got is not None
    wanted = moment(number)
    assert got.server.round == number
    assert_same(got.server.model, wanted.server.model)
    assert_same(got.sites["a"].c, wanted.sites["a"].c)
    assert got.sites["a"].batches == number
    assert got.record == wanted.record


def test_the_latest_round_is_read_back(tmp_path: Path) -> None:
    assert read_latest(tmp_path) is None
    for number in (1, 2, 3):
        write_checkpoint(tmp_path, moment(number))
    assert_is(read_latest(tmp_path), 3)
    assert [record["round"] for record in read_records(tmp_path, 3)] == [1, 2, 3]


def test_only_the_last_two_rounds_keep_their_tensors(tmp_path: Path) -> None:
    for number in range(1, 6):
        write_checkpoint(tmp_path, moment(number))
    assert len(list((tmp_path / "objects").iterdir())) == 4  # server and one site, twice


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


DAMAGES: list[Callable[[Path], None]] = [flip, cut, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("what", ["manifest", "server", "site"])
def test_damage_is_found_and_the_previous_round_used(
    damage: Callable[[Path], None], what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        path = write_checkpoint(tmp_path, moment(number))
    names = json.loads(path.read_bytes())
    key = names["server"] if what == "server" else names["sites"]["a"]
    damage(path if what == "manifest" else module.object_path(tmp_path, key))
    with caplog.at_level(logging.WARNING):
        assert_is(read_latest(tmp_path), 1)
    if not (what == "manifest" and damage is Path.unlink):  # a round without its manifest was never committed
        assert "the round before it is used" in caplog.text


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    flip(write_checkpoint(tmp_path, moment(1)))
    with pytest.raises(DamagedCheckpoint, match="start anew"):
        read_latest(tmp_path)


class PowerCut(Exception):
    """The machine stops here."""


def test_a_stop_between_any_two_writes_leaves_a_whole_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file-system step of a commit is the last one done, one of the two rounds is there as a whole."""
    seen = set()
    for stop in range(40):
        folder = tmp_path / str(stop)
        write_checkpoint(folder, moment(1))
        with monkeypatch.context() as patch:
            finished = stopped_at(stop, folder, patch)
        got = read_latest(folder)
        assert got is not None
        assert_is(got, got.server.round)
        seen.add(got.server.round)
        write_checkpoint(folder, moment(3))
        assert_is(read_latest(folder), 3)
        if finished:
            break
    assert finished
    assert seen == {1, 2}


def stopped_at(stop: int, folder: Path, patch: pytest.MonkeyPatch) -> bool:
    """Commit round 2, stopping before the step of that number; True where there are fewer steps."""
    left = [stop]

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*words: Any, **more: Any) -> Any:
            if not left[0]:
                raise PowerCut
            left[0] -= 1
            return step(*words, **more)

        return run

    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "open")):
        patch.setattr(owner, name, counted(getattr(owner, name)))
    try:
        write_checkpoint(folder, moment(2))
    except PowerCut:
        return False
    return True


def test_a_run_killed_again_and_again_ends_bit_identical(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fl_core.rounds"])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train_tiny(whole)
    kills = 0
    for attempt in range(30):
        child = context.Process(target=train_tiny, args=(killed,))
        child.start()
        wait_for_rounds(killed, 1 + 2 * attempt, child)
        time.sleep(random.Random(attempt).random() * 0.02)  # another moment each time: not a wait for anything
        child.kill()
        child.join()
        kills += child.exitcode != 0
        got = read_latest(killed)
        if got is not None and got.server.round == ROUNDS:
            break
    wanted = read_latest(whole)
    assert got is not None
    assert wanted is not None
    assert kills >= 5
    assert pack(got.server) == pack(wanted.server)
    assert {n: pack(s) for n, s in got.sites.items()} == {n: pack(s) for n, s in wanted.sites.items()}


def wait_for_rounds(folder: Path, count: int, child: multiprocessing.process.BaseProcess) -> None:
    """Until so many rounds are committed, or the child has ended."""
    deadline = time.monotonic() + 60
    while len(list(folder.glob("rounds/*.json"))) < count and child.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.001)
