"""Sums over sites: exact where they can be, typed, streamed, and refusing what must not count."""

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fl_core.aggregate import Absent, BadUpdate, MissingUpdate, WeightedMean, aggregate, check_update, expected
from fl_core.family import ALGORITHMS
from fl_core.local import first_state
from fl_core.roles import roles
from fl_core.state import SiteState, Update
from tests.laws.toy import assert_same, tiny_net

MODEL = tiny_net(torch.float32)
PARTS = roles(MODEL)
SERVER = first_state(MODEL)
ROW = ALGORITHMS["bn-scaffold"]
WANTED = expected(ROW, PARTS, SERVER)


def update(site: str, patches: int, seed: int, row: str = "bn-scaffold") -> Update:
    """Random tensors of the right names and shapes."""
    generator = torch.Generator().manual_seed(seed)

    def noise(name: str) -> Tensor:
        like = SERVER.model[name]
        if not like.is_floating_point():
            return like + seed
        found = torch.randn(like.shape, generator=generator)
        return found.abs() if name in PARTS.statistics[1::2] else found

    shared = {name: noise(name) for name in SERVER.model}
    c = {name: noise(name) for name in PARTS.parameters} if ALGORITHMS[row].weight_grad else {}
    k = {name: noise(name) for name in PARTS.statistics} if ALGORITHMS[row].corrects_statistics else {}
    return Update(site, 1, patches, 3, 0.5, shared, c, k)


def means(updates: list[Update], group: str, total: int) -> dict[str, Tensor]:
    """Σ P_i x_i in float64, the slow way."""
    named = [(u.patches / total, getattr(u, group)) for u in updates]
    return {
        name: torch.stack([weight * tensors[name].double() for weight, tensors in named]).sum(0)
        for name, tensor in named[0][1].items()
        if tensor.is_floating_point()
    }


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=6))
def test_everything_is_averaged_with_the_same_weights(patches: list[int]) -> None:
    updates = [update(f"s{i}", n, i) for i, n in enumerate(patches)]
    got = aggregate(ROW, PARTS, SERVER, iter(updates), {u.site: u.patches for u in updates})
    for group in ("model", "c", "k"):
        for name, wanted in means(updates, group, sum(patches)).items():
            torch.testing.assert_close(getattr(got, group)[name].double(), wanted, atol=1e-5, rtol=1e-5)
    assert got.round == 1


def test_one_site_is_itself_bit_for_bit() -> None:
    only = update("a", 7, 3)
    got = aggregate(ROW, PARTS, SERVER, [only], {"a": 7})
    assert_same(got.model, only.model)
    assert_same(got.c, only.c)
    assert_same(got.k, only.k)


def test_counters_stay_integers() -> None:
    got = aggregate(ROW, PARTS, SERVER, [update("a", 1, 3), update("b", 2, 8)], {"a": 1, "b": 2})
    counters = [got.model[name] for name in PARTS.counters]
    assert all(counter.dtype == torch.int64 and counter == 8 for counter in counters)


@pytest.mark.parametrize("name", ["bn-scaffold", "bn-scaffold-std"])
def test_an_absent_site_keeps_its_variates_in_the_means(name: str) -> None:
    here, away = [update("a", 10, 1, name), update("b", 30, 2, name)], update("c", 60, 3, name)
    kept = Absent(60, lambda: SiteState(c=away.c, k=away.k))
    row = ALGORITHMS[name]
    got = aggregate(row, PARTS, SERVER, here, {"a": 10, "b": 30}, [kept])
    for key, wanted in means([*here, away], "c", 100).items():
        torch.testing.assert_close(got.c[key].double(), wanted, atol=1e-6, rtol=1e-6)
    whole = aggregate(row, PARTS, SERVER, [*here, away], {"a": 10, "b": 30, "c": 60})
    assert_same(got.k, whole.k)
    for key, wanted in means(here, "model", 40).items():
        torch.testing.assert_close(got.model[key].double(), wanted, atol=1e-6, rtol=1e-6)


def test_updates_are_taken_one_at_a_time() -> None:
    """No update is held while the next one is made: sums stream."""
    alive: list[int] = []

    def stream() -> Iterator[Update]:
        last: weakref.ref[Tensor] | None = None
        for i in range(5):
            fresh = update(f"s{i}", 1, i)
            alive.append(0 if last is None or last() is None else 1)
            last = weakref.ref(fresh.model["first.weight"])
            yield fresh
            del fresh

    aggregate(ROW, PARTS, SERVER, stream(), {f"s{i}": 1 for i in range(5)})
    assert not any(alive)
    assert len(alive) == 5


def test_a_missing_update_stops_the_round() -> None:
    with pytest.raises(MissingUpdate, match="announced"):
        aggregate(ROW, PARTS, SERVER, [update("a", 10, 1)], {"a": 10, "b": 5})


def bad(field: str, name: str, tensor: Tensor) -> Update:
    good = update("lab", 5, 1)
    changed: dict[str, Any] = {field: {**getattr(good, field), name: tensor}}
    return replace(good, **changed)


NAN = torch.full((4, 1, 3, 3), torch.nan)
INFINITE = torch.zeros(4).index_fill(0, torch.tensor([2]), torch.inf)
GOOD = update("lab", 5, 1)
REFUSED = {
    "not finite": bad("model", "first.weight", NAN),
    "norm1.running_var.*not finite": bad("k", "norm1.running_var", INFINITE),
    "model: the variance 'norm1.running_var' is negative": bad("model", "norm1.running_var", -torch.ones(4)),
    "k: the variance 'norm1.running_var' is negative": bad("k", "norm1.running_var", -torch.ones(4)),
    "first.weight.*\\(4, 1, 3, 3\\) is needed": bad("model", "first.weight", torch.zeros(4, 1, 3, 2)),
    "first.weight.*float64": bad("c", "first.weight", torch.zeros(4, 1, 3, 3, dtype=torch.float64)),
    "extra.*not asked for": bad("model", "extra", torch.zeros(1)),
    "out.bias.*missing": replace(GOOD, c={k: v for k, v in GOOD.c.items() if k != "out.bias"}),
    "round 7": replace(GOOD, round=7),
    "0 patches": replace(GOOD, patches=0),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_bad_update_names_site_and_tensor(reason: str) -> None:
    with pytest.raises(BadUpdate, match=f"lab.*{reason}"):
        check_update(WANTED, REFUSED[reason])


def test_a_good_update_passes() -> None:
    assert check_update(WANTED, GOOD) is GOOD


def test_variates_are_refused_where_the_row_has_none() -> None:
    with pytest.raises(BadUpdate, match="not asked for"):
        check_update(expected(ALGORITHMS["fedavg"], PARTS, SERVER), GOOD)


def test_large_but_finite_values_count() -> None:
    """A sum may overflow where no value does."""
    huge = torch.full((4, 1, 3, 3), 3e38)
    assert check_update(WANTED, bad("model", "first.weight", huge))


def test_half_precision_means_keep_their_dtype() -> None:
    mean = WeightedMean()
    for weight in (0.25, 0.75):
        mean.add({"x": torch.ones(3, dtype=torch.bfloat16)}, weight)
    assert mean.result()["x"].dtype == torch.bfloat16
