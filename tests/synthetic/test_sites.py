"""Sites differ exactly as much as asked."""

from dataclasses import replace

import numpy as np
import pytest

from mammofed.errors import BadSetting
from synthetic.lesions import CLASSES
from synthetic.sites import PRESETS, FederationSettings, federation, site_look, sites_of

SMALL = replace(PRESETS["two-hospitals"], sites=sites_of(2, 300), size=24, test=101)


def test_the_two_hospitals_are_the_papers() -> None:
    with_lut, without = PRESETS["two-hospitals"].sites
    assert (with_lut.style.kind, without.style.kind) == ("sigmoid", "none")


@pytest.mark.parametrize("skew", [0.5, 0.8, 1.0])
def test_own_style_has_probability_p(skew: float) -> None:
    settings = replace(SMALL, sites=sites_of(2, 2000), skew=skew, size=16)
    for number, site in enumerate(federation(settings, 0)):
        share = (site.train.style_site == number).mean()
        assert share == pytest.approx(skew, abs=0.04)
        assert set(site.test.style_site) == {number}


def test_the_dial_changes_styles_and_nothing_else() -> None:
    mixed, pure = federation(replace(SMALL, skew=0.5), 3), federation(replace(SMALL, skew=1.0), 3)
    for a, b in zip(mixed, pure, strict=True):
        same = a.train.style_site == b.train.style_site
        assert np.array_equal(a.train.labels, b.train.labels)
        assert np.array_equal(a.train.images[same], b.train.images[same])
        assert (a.train.images[~same] != b.train.images[~same]).any(axis=(1, 2)).all()
        assert a.test.fingerprint == b.test.fingerprint


def test_other_styles_are_drawn_evenly() -> None:
    settings = replace(PRESETS["five-vendors"], sites=sites_of(5, 2000), skew=0.2, size=16, test=100)
    for site in federation(settings, 0):
        assert np.bincount(site.train.style_site, minlength=5) / len(site.train) == pytest.approx(0.2, abs=0.04)


def test_the_sites_tests_are_the_shared_test_set() -> None:
    sites = federation(SMALL, 0)
    assert sum(len(site.test) for site in sites) == SMALL.test
    assert abs(len(sites[0].test) - len(sites[1].test)) <= 1


@pytest.mark.parametrize(
    "settings", [SMALL, replace(SMALL, sites=sites_of(5, 60), label_skew=1.0, validation=0.5)]
)
def test_parts_share_no_patch(settings: FederationSettings) -> None:
    seen = [
        patch.tobytes()
        for site in federation(settings, 0)
        for part in (site.train, site.validation, site.test)
        for patch in part.images
    ]
    assert len(set(seen)) == len(seen)


def test_a_site_has_the_patches_asked_for() -> None:
    for site in federation(replace(SMALL, validation=0.2), 0):
        assert (len(site.train), len(site.validation)) == (240, 60)


def test_full_label_skew_gives_each_site_its_own_classes() -> None:
    first, second = federation(replace(SMALL, label_skew=1.0), 0)
    assert set(first.train.labels) == {0, 2, 4}
    assert set(second.train.labels) == {1, 3}
    assert set(first.test.labels) == set(second.test.labels) == set(range(5))


def test_density_skew_orders_the_sites() -> None:
    settings = replace(PRESETS["five-vendors"], density_skew=1.0)
    densities = [site_look(number, settings).density for number in range(5)]
    assert densities == sorted(densities)
    assert densities[-1] - densities[0] == pytest.approx(0.2)
    alike = replace(settings, density_skew=0.0)
    assert len({site_look(number, alike).density for number in range(5)}) == 1


def test_each_site_reads_as_a_patch_source() -> None:
    source = federation(SMALL, 0)[0].train
    assert source.classes == CLASSES
    assert source.labels.dtype == np.int64
    batch = source.read(np.array([5, 0, 5]))
    assert batch.shape == (3, 1, 24, 24)
    assert batch.dtype == np.float32
    assert np.array_equal(batch[0], batch[2])


def test_the_fingerprint_changes_with_the_content() -> None:
    prints = [federation(SMALL, seed)[0].train.fingerprint for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]
    other = federation(SMALL, 0)[0].train
    assert replace(other, labels=other.labels[::-1]).fingerprint != prints[0]


def test_a_seed_gives_the_same_federation_on_any_number_of_workers() -> None:
    one, three = federation(SMALL, 0, workers=1), federation(SMALL, 0, workers=3)
    assert [s.train.fingerprint for s in one] == [s.train.fingerprint for s in three]


def test_presets_have_their_names() -> None:
    assert set(PRESETS) == {"two-hospitals", "five-vendors"}
    with pytest.raises(BadSetting, match="two-hospitals, five-vendors"):
        federation("three-hospitals", 0)


@pytest.mark.parametrize(
    "settings",
    [
        replace(SMALL, skew=0.4),
        replace(SMALL, skew=1.1),
        replace(SMALL, label_skew=2.0),
        replace(SMALL, density_skew=-0.1),
        replace(SMALL, validation=1.0),
        replace(SMALL, test=4),
        replace(SMALL, sites=()),
        replace(SMALL, sites=(SMALL.sites[0], SMALL.sites[0])),
    ],
)
def test_settings_that_cannot_be_drawn_raise(settings: FederationSettings) -> None:
    with pytest.raises(BadSetting):
        federation(settings, 0)
