"""Batches: endless, seeded, of equal size, and resumable at any number."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_core.data import ArrayPatches, JoinedPatches, SiteData, check_sites, draw, pool, whole_batches
from mammofed.errors import BadData


def site(n: int, name: str = "a", seed: int = 0, classes: tuple[str, ...] = ("x", "y")) -> SiteData:
    images = np.arange(n, dtype=np.float32)[:, None, None, None] * np.ones((1, 1, 2, 2), np.float32)
    patches = ArrayPatches(images, np.arange(n) % 2, classes)
    return SiteData(name, patches, patches, seed)


@settings(deadline=None)
@given(st.integers(2, 40), st.integers(2, 50), st.integers(0, 5))
def test_batches_are_of_equal_size_and_every_epoch_sees_each_patch_once(n: int, batch: int, seed: int) -> None:
    data = site(n, seed=seed)
    size = min(batch, n)
    drawn = [draw(data, batch, number) for number in range(3 * n)]
    assert {len(indices) for indices in drawn} == {size}
    stream = np.concatenate(drawn)[: 3 * n]
    assert all(Counter(stream[e * n : (e + 1) * n].tolist()) == Counter(range(n)) for e in range(3))


def test_a_last_batch_of_one_patch_does_not_exist() -> None:
    data = site(33)  # 33 = 2 × 16 + 1
    assert {len(draw(data, 16, number)) for number in range(10)} == {16}
    assert {len(batch) for batch in whole_batches(data, 16)} == {11}
    assert np.array_equal(np.sort(np.concatenate(list(whole_batches(data, 16)))), np.arange(33))


def test_epochs_and_sites_have_orders_of_their_own() -> None:
    assert not np.array_equal(draw(site(30), 30, 0), draw(site(30), 30, 1))
    assert not np.array_equal(draw(site(30), 30, 0), draw(site(30, seed=1), 30, 0))
    assert np.array_equal(draw(site(30), 30, 0), draw(site(30), 30, 0))


def test_pooled_sites_read_as_one() -> None:
    pooled = pool([site(3), site(5, "b")], seed=0)
    assert pooled.patches == 8
    values = pooled.train.read(np.array([7, 0, 3, 2]))[:, 0, 0, 0]
    assert values.tolist() == [4, 0, 0, 2]
    assert pooled.train.labels.tolist() == [0, 1, 0, 0, 1, 0, 1, 0]


def test_a_fingerprint_changes_with_the_content() -> None:
    one, same, other = site(5).train, site(5).train, site(6).train
    assert one.fingerprint == same.fingerprint
    assert len({one.fingerprint, other.fingerprint, JoinedPatches((one, other)).fingerprint}) == 3


@pytest.mark.parametrize(
    ("sites", "reason"),
    [
        ([], "at least one site"),
        ([site(3), site(3)], "name of its own"),
        ([site(3), site(1, "b")], "'b' has 1 training patches"),
        ([site(3), site(3, "b", classes=("y", "x"))], "one order"),
    ],
)
def test_sites_that_cannot_train_together_raise(sites: list[SiteData], reason: str) -> None:
    with pytest.raises(BadData, match=reason):
        check_sites(sites)
