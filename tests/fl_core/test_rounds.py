"""Rounds on one machine: equal results however the sites are run, and errors that name site, tensor and step."""

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from scipy.stats import ttest_1samp
from torch import Tensor, nn

from fl_core.checkpoint import FolderLedger, read_latest
from fl_core.data import ArrayPatches, Images, SiteData
from fl_core.exchange import Meeting
from fl_core.family import ALGORITHMS
from fl_core.local import first_state, train_round, workplace
from fl_core.models import build_model
from fl_core.plan import Plan
from fl_core.rounds import Federation, Moment, run_rounds
from fl_core.schedule import Schedule
from fl_core.state import SiteState
from fl_core.wire import pack
from mammofed.errors import BadSetting, TrainingFailed
from tests.laws.toy import ALICE, BOB, DIFFERENT, TinyNet, plan, tiny_net, train

SMALL = partial(build_model, "densenet-small", 1, 3, 0)


def stripes(n: int, seed: int) -> ArrayPatches:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    images = rng.normal(size=(n, 1, 32, 32)).astype(np.float32)
    return ArrayPatches(images, labels, ("a", "b", "c"))


THREE = tuple(SiteData(f"s{i}", stripes(10 + i, i), stripes(9, 50 + i), i) for i in range(3))


def final(name: str, workers: int) -> Moment:
    planned = plan(name, rounds=2, local_steps=2, batch=4)
    *_, last = run_rounds(Federation(planned, SMALL, THREE), lambda evaluation: {}, workers=workers)
    return last


@pytest.mark.parametrize(("name", "workers"), [("bn-scaffold-std", 2), ("fedbn+scaffold", 3), ("fedtan", 3)])
def test_worker_processes_give_the_same_bits(name: str, workers: int) -> None:
    here, there = final(name, 0), final(name, workers)
    assert pack(here.server) == pack(there.server)
    assert {n: pack(s) for n, s in here.states.items()} == {n: pack(s) for n, s in there.states.items()}


def endless_rounds() -> None:
    planned = plan("fedtan", rounds=10_000, local_steps=2, batch=4)
    for _ in run_rounds(Federation(planned, SMALL, THREE), lambda evaluation: {}, workers=3):
        pass


def test_worker_processes_end_with_a_process_that_is_killed() -> None:
    process = multiprocessing.get_context("spawn").Process(target=endless_rounds)
    process.start()
    trainer = psutil.Process(process.pid)
    deadline = time.monotonic() + 120
    while len(below := trainer.children(recursive=True)) < 4 and time.monotonic() < deadline:
        time.sleep(0.2)
    process.kill()
    process.join()
    _gone, alive = psutil.wait_procs(below, timeout=30)
    for left in alive:
        left.kill()
    assert len(below) >= 4
    assert not alive


def test_fedtan_refuses_fewer_workers_than_sites() -> None:
    with pytest.raises(BadSetting, match="one for each site"):
        final("fedtan", 2)


class Exploding(nn.Module):
    """A network whose loss is not finite once its weights have moved."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TinyNet().double()
        self.start = self.inner.out.bias.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        moved = not torch.equal(self.inner.out.bias, self.start)
        found: Tensor = self.inner(x) * (torch.nan if moved else 1.0)
        return found


def test_a_loss_that_is_not_finite_names_site_round_and_step() -> None:
    with pytest.raises(TrainingFailed, match="site 'a', round 1, step 2: the loss is not finite"):
        train(DIFFERENT, plan("fedavg"), Exploding)


def test_a_tensor_that_is_not_finite_is_named() -> None:
    huge = plan("fedavg", local_steps=2, schedule=Schedule(1e200))
    with pytest.raises(
        TrainingFailed, match=r"site 'a', model: tensor 'norm1.running_var' is not finite after step 2"
    ):
        train(DIFFERENT, huge)


def test_a_site_that_fails_leaves_the_last_good_round(tmp_path: Path) -> None:
    wild = replace(BOB, train=Wild(BOB.train, from_read=6))  # two rounds of three steps are fine
    federation = Federation(plan("bn-scaffold", rounds=9), tiny_net, (ALICE, wild))
    with pytest.raises(TrainingFailed, match="site 'b', round 3, step 1: the loss is not finite"):
        for _ in run_rounds(federation, lambda evaluation: {}, FolderLedger(tmp_path)):
            pass
    kept = read_latest(tmp_path)
    assert kept is not None
    assert kept.server.round == 2


class Wild:
    """Patches that turn into NaN after some reads."""

    def __init__(self, inner: object, from_read: int) -> None:
        assert isinstance(inner, ArrayPatches)
        self.inner, self.left = inner, from_read
        self.labels, self.classes, self.fingerprint = inner.labels, inner.classes, "wild"

    def read(self, indices: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Images:
        self.left -= 1
        images = self.inner.read(indices)
        return images if self.left >= 0 else images * np.float32(np.nan)


def test_a_site_that_fails_in_a_meeting_keeps_nobody_waiting() -> None:
    wild = replace(BOB, train=Wild(BOB.train, from_read=3))
    with pytest.raises(TrainingFailed):
        train((ALICE, wild), plan("fedtan"))
    meeting = Meeting(2)
    meeting.leave()
    with pytest.raises(TrainingFailed, match="another site left"):
        meeting.mean(0, np.zeros(2), 1)


def test_another_run_is_not_continued(tmp_path: Path) -> None:
    def go(seed: int, sites: tuple[SiteData, ...] = DIFFERENT) -> None:
        planned = plan("fedavg", rounds=1, seed=seed, schedule=Schedule(0.1, milestones=(2,), factor=0.5))
        for _ in run_rounds(Federation(planned, tiny_net, sites), lambda evaluation: {}, FolderLedger(tmp_path)):
            pass

    go(0)
    go(0)  # finished: nothing to do, and no error
    with pytest.raises(BadSetting, match="other seed"):
        go(1)
    with pytest.raises(BadSetting, match="other data"):
        go(0, (ALICE,))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_resumed_run_ends_bit_identical(name: str, tmp_path: Path) -> None:
    whole = train(DIFFERENT, plan(name, rounds=4))
    for rounds in (2, 4):
        federation = Federation(plan(name, rounds=rounds), tiny_net, DIFFERENT)
        *_, last = run_rounds(federation, lambda evaluation: {}, FolderLedger(tmp_path))
    assert pack(last.server) == pack(whole.server)
    assert {n: pack(s) for n, s in last.states.items()} == {n: pack(s) for n, s in whole.states.items()}


def test_augmentation_has_a_generator_of_its_own_for_each_batch() -> None:
    seen: list[float] = []

    def augment(images: Images, generator: np.random.Generator) -> Images:
        seen.append(float(generator.random()))
        return images

    federation = Federation(plan("fedavg", rounds=2), tiny_net, DIFFERENT, augment)
    list(run_rounds(federation, lambda evaluation: {}))
    assert len(set(seen)) == len(seen) == 12


@pytest.mark.parametrize("name", ["fedbn", "local"])
def test_rows_with_private_tensors_are_scored_by_one_model_a_site(name: str) -> None:
    last = train(DIFFERENT, plan(name))
    assert last.evaluation is not None
    assert set(last.evaluation.by_site_model) == {"a", "b"}
    assert len(last.evaluation.by_site_model["a"].labels) == 24
    own, other = (last.evaluation.by_site_model[site].scores[:12] for site in ("a", "b"))
    assert np.array_equal(own, last.evaluation.by_site["a"].scores)
    assert not np.array_equal(own, other)


def present_in(*rounds: frozenset[str]) -> Iterator[frozenset[str]]:
    yield from rounds


@pytest.mark.parametrize("name", ["scaffold", "bn-scaffold", "fedbn+scaffold", "fedavg"])
def test_a_site_that_stays_away_keeps_its_variates_and_the_sums_hold(name: str) -> None:
    all_three, without_s1 = frozenset({"s0", "s1", "s2"}), frozenset({"s0", "s2"})
    calls = present_in(all_three, without_s1, all_three)
    federation = Federation(plan(name, rounds=3, local_steps=2, batch=4), SMALL, THREE)
    first, second, third = run_rounds(federation, lambda evaluation: {}, present=lambda: next(calls))
    assert [update.site for update in second.updates] == ["s0", "s2"]
    assert pack(second.states["s1"]) == pack(first.states["s1"])
    assert third.states["s1"].batches == 4  # two rounds of two steps
    total = sum(site.patches for site in THREE)
    for moment in (second, third):
        for group in ("c", "k"):
            for weight, tensor in getattr(moment.server, group).items():
                parts = [getattr(moment.states[s.name], group)[weight].double() * s.patches / total for s in THREE]
                torch.testing.assert_close(tensor.double(), sum(parts, torch.zeros(())), rtol=1e-4, atol=1e-6)


def losses_of(site: SiteData, planned: Plan) -> list[float]:
    """The losses of the steps of the first round, one by one."""
    place = workplace(planned, tiny_net())
    seen: list[float] = []
    train_round(place, site, first_state(place.model), SiteState(), progress=lambda _, loss: seen.append(loss))
    return seen


def test_the_loss_of_a_round_has_its_interval_and_its_n() -> None:
    planned = plan("fedavg", rounds=1, local_steps=4)
    record = train(DIFFERENT, planned).record
    for site in DIFFERENT:
        own, losses = record["sites"][site.name], losses_of(site, planned)
        assert own["loss"] == pytest.approx(np.mean(losses))
        low, high = ttest_1samp(losses, 0).confidence_interval()
        assert (own["loss_low"], own["loss_high"]) == pytest.approx((low, high))
        assert own["loss_n"] == 4 * 8
    assert record["loss_low"] < record["loss"] < record["loss_high"]
    assert record["loss_n"] == 2 * 4 * 8


def test_a_single_step_has_no_interval_and_a_small_site_no_n() -> None:
    record = train(DIFFERENT, plan("fedavg", rounds=1, local_steps=1, batch=20)).record
    small, large = (record["sites"][site.name] for site in DIFFERENT)
    assert (small["loss_low"], small["loss_high"], large["loss_low"]) == (None, None, None)
    assert ALICE.patches < 20 < BOB.patches
    assert (small["loss_n"], large["loss_n"], record["loss_n"]) == (None, 20, None)


def test_pooled_data_are_trained_on_in_batches_of_all_sites() -> None:
    record = train(DIFFERENT, plan("centralized", rounds=1)).record
    assert record["loss_n"] == record["sites"]["pooled"]["loss_n"] == 3 * 2 * 8
