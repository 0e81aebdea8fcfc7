"""Patches are in [0, 1], balanced, and the same bits for a seed however they are drawn."""

import numpy as np
import pytest
import scipy.fft
from scipy.ndimage import gaussian_filter

from mammo.style import NO_STYLE, Style, parse_style
from mammofed.errors import BadSetting
from synthetic.lesions import CLASSES
from synthetic.patches import (
    CHUNK,
    Look,
    Styling,
    apply_styles,
    balanced_labels,
    blurred,
    draw_patches,
    patch_chunks,
    synthetic_patches,
)


def test_patches_are_float32_in_the_unit_interval() -> None:
    patches, labels = synthetic_patches(203, 48, seed=0)
    assert patches.shape == (203, 48, 48)
    assert patches.dtype == np.float32
    assert labels.dtype == np.int64
    assert patches.min() >= 0
    assert patches.max() <= 1
    assert np.bincount(labels, minlength=5).max() - np.bincount(labels, minlength=5).min() <= 1


def test_a_seed_gives_the_same_bits_on_any_number_of_workers() -> None:
    draws = [synthetic_patches(5 * CHUNK + 7, 32, seed=4, workers=w)[0].tobytes() for w in (1, 2, 5)]
    assert draws[0] == draws[1] == draws[2]


def test_another_seed_gives_other_patches() -> None:
    assert not np.array_equal(synthetic_patches(10, 32, 0)[0], synthetic_patches(10, 32, 1)[0])


def test_no_two_patches_are_alike_across_chunks() -> None:
    labels = np.zeros(3 * CHUNK, np.int64)
    patches = draw_patches(labels, Look(16), 0, Styling((NO_STYLE,), labels))
    assert len({patch.tobytes() for patch in patches}) == 3 * CHUNK


def test_chunks_come_one_by_one() -> None:
    labels = np.zeros(10**6, np.int64)
    chunks = patch_chunks(labels, Look(16), 0, Styling((NO_STYLE,), labels))
    assert next(chunks).shape == (CHUNK, 16, 16)
    chunks.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [31, 48, 100])
def test_any_size_can_be_drawn(size: int) -> None:
    patches, _ = synthetic_patches(10, size, seed=0)
    assert patches.shape == (10, size, size)
    assert np.isfinite(patches).all()


def test_a_style_changes_the_grey_levels_and_nothing_else() -> None:
    style = parse_style("sigmoid:0.58:0.2")
    plain, styled = synthetic_patches(20, 32, 3)[0], synthetic_patches(20, 32, 3, style)[0]
    assert np.array_equal(styled, apply_styles(plain.copy(), (style,), np.zeros(20, np.int64)))
    assert styled.std() > 2 * plain.std()
    order = plain[0].ravel().argsort()
    assert (np.diff(styled[0].ravel()[order]) >= 0).all()


def test_a_voi_style_raises() -> None:
    with pytest.raises(BadSetting, match="no file"):
        synthetic_patches(5, 32, 0, Style("voi", voi="NORMAL"))


def test_denser_tissue_is_brighter_and_noise_is_rougher() -> None:
    labels = np.zeros(64, np.int64)
    styling = Styling((NO_STYLE,), labels)
    thin, dense = (draw_patches(labels, Look(48, density=d), 0, styling) for d in (0.3, 0.6))
    assert dense.mean() - thin.mean() == pytest.approx(0.3, abs=0.03)
    clean, noisy = (draw_patches(labels, Look(48, noise=s), 0, styling) for s in (0.0, 0.8))
    assert np.abs(np.diff(noisy)).mean() > 2 * np.abs(np.diff(clean)).mean()


@pytest.mark.parametrize("size", [31, 32])
def test_blur_is_gaussian(size: int) -> None:
    maps = np.random.default_rng(0).random((2, size, size), dtype=np.float32)
    sigma = np.array([1.2, 2.0], np.float32)
    got = scipy.fft.irfft2(blurred(scipy.fft.rfft2(maps), sigma), s=(size, size))
    for image, sharp, width in zip(got, maps, sigma, strict=True):
        assert np.abs(image - gaussian_filter(sharp, width, mode="wrap", truncate=6)).max() < 2e-3


def test_mean_and_contrast_are_alike_in_all_classes() -> None:
    patches, labels = synthetic_patches(2000, 32, seed=0)
    means = [patches[labels == k].mean() for k in range(5)]
    contrasts = [patches[labels == k].std(axis=(1, 2)).mean() for k in range(5)]
    assert np.ptp(means) < 0.01
    assert np.ptp(contrasts) < 0.005


def test_labels_follow_their_weights() -> None:
    labels = balanced_labels(1003, np.array([4.0, 3, 2, 1, 0]), seed=0)
    assert np.abs(np.bincount(labels, minlength=len(CLASSES)) - [401, 301, 201, 100, 0]).max() <= 1


@pytest.mark.parametrize(("n", "workers"), [(0, 1), (5, 0)])
def test_nothing_to_draw_raises(n: int, workers: int) -> None:
    with pytest.raises(BadSetting, match="at least one"):
        synthetic_patches(n, 32, 0, workers=workers)


@pytest.mark.parametrize("look", [{"density": 0.9}, {"noise": -1.0}])
def test_an_impossible_look_raises(look: dict[str, float]) -> None:
    with pytest.raises(BadSetting, match="density"):
        Look(32, **look)
