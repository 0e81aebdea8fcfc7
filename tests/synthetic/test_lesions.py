"""Lesions look as the spec says, in millimetres, and no grey-level shortcut tells them."""

import numpy as np
import pytest
from scipy.ndimage import label as components

from benchmarks.bench_shortcut import shortcut_auc
from mammofed.errors import BadSetting
from synthetic.lesions import (
    BACKGROUND,
    CALC_BENIGN,
    CALC_MALIGNANT,
    MASS_BENIGN,
    MASS_MALIGNANT,
    Floats,
    Grid,
    Maps,
    Specks,
    draw_fibres,
    draw_lesions,
    splat,
    stamp,
)
from synthetic.patches import synthetic_patches

FINE = Grid(256, 14 / 256)


def _lesions(label: int, grid: Grid = FINE, count: int = 40) -> Maps:
    return draw_lesions(np.full(count, label), grid, np.random.default_rng(7))


def _compactness(maps: Maps) -> Floats:
    """Return 16A/P² of each lesion on the pixel grid: π/4 for a disc, small for a star."""
    inside = maps > 0.1 * maps.max(axis=(1, 2), keepdims=True)
    edges = sum(np.abs(np.diff(inside, axis=axis)).sum(axis=(1, 2)) for axis in (1, 2))
    return np.asarray(16 * inside.sum(axis=(1, 2)) / np.square(edges), dtype=np.float32)


def test_background_is_empty() -> None:
    assert not _lesions(BACKGROUND).any()


def test_malignant_masses_are_irregular_and_benign_ones_compact() -> None:
    benign, malignant = (_compactness(_lesions(kind)) for kind in (MASS_BENIGN, MASS_MALIGNANT))
    assert benign.min() > 0.7
    assert malignant.max() < 0.4


def test_malignant_calcifications_are_many_and_fine() -> None:
    counts, areas = {}, {}
    for kind in (CALC_BENIGN, CALC_MALIGNANT):
        maps = _lesions(kind)
        found = [components(m > 0.2 * m.max()) for m in maps]
        counts[kind] = np.median([number for _, number in found])
        areas[kind] = np.median([(mask > 0).sum() / number for mask, number in found])
    assert counts[CALC_BENIGN] < 6 < counts[CALC_MALIGNANT]
    assert areas[CALC_MALIGNANT] < areas[CALC_BENIGN] / 2


@pytest.mark.parametrize("kind", [MASS_BENIGN, MASS_MALIGNANT])
def test_sizes_are_in_millimetres_whatever_the_spacing(kind: int) -> None:
    areas = [
        (_lesions(kind, grid) > 0.3).sum(axis=(1, 2)) * grid.spacing**2 for grid in (FINE, Grid(128, 14 / 128))
    ]
    assert np.median(areas[0]) == pytest.approx(np.median(areas[1]), rel=0.1)
    assert 5 < np.median(areas[0]) < 40


def test_a_line_has_the_same_mass_at_any_spacing() -> None:
    points = np.linspace([-2, -2], [2, 2], 100, dtype=np.float32)[None]
    weight = np.full((1, 100), 0.01, np.float32)
    masses = [splat(points, weight, grid).sum() * grid.spacing**2 for grid in (Grid(64, 0.2), Grid(128, 0.1))]
    assert masses == pytest.approx([1, 1], rel=1e-4)


def test_a_speck_finer_than_a_pixel_keeps_its_mass() -> None:
    shape = (1, 1)
    specks = Specks(np.zeros((1, 1, 2), np.float32), *(np.full(shape, v, np.float32) for v in (0.05, 0.05, 3)))
    masses = [
        stamp(specks, np.zeros(shape, np.float32), grid).sum() * grid.spacing**2
        for grid in (Grid(65, 0.2), Grid(257, 0.02))
    ]
    assert masses == pytest.approx([3 * 2 * np.pi * 0.05**2] * 2, rel=0.06)


def test_what_lies_outside_the_patch_is_dropped() -> None:
    points = np.array([[[100.0, 0.0], [-100.0, 3.0]]], np.float32)
    assert not splat(points, np.ones((1, 2), np.float32), Grid(32, 0.2)).any()


def test_positions_of_all_classes_are_alike() -> None:
    axis = np.arange(64) - 31.5
    spread = []
    for kind in (MASS_BENIGN, MASS_MALIGNANT, CALC_BENIGN, CALC_MALIGNANT):
        maps = _lesions(kind, Grid(64, 14 / 64), 500)
        centre = (maps.sum(axis=1) @ axis) / maps.sum(axis=(1, 2))
        assert abs(centre.mean()) < 1
        spread.append(centre.std())
    assert max(spread) < 1.5 * min(spread)


def test_fibres_cross_the_whole_patch() -> None:
    fibres = draw_fibres(400, Grid(64, 14 / 64), np.random.default_rng(0)).mean(axis=0)
    blocks = fibres.reshape(8, 8, 8, 8).mean(axis=(1, 3))
    assert blocks.min() > 0.3 * blocks.max()


def test_grey_levels_do_not_tell_benign_from_malignant() -> None:
    train, test = synthetic_patches(3000, 48, seed=11), synthetic_patches(2000, 48, seed=12)
    assert shortcut_auc(train, test, MASS_BENIGN, MASS_MALIGNANT) < 0.65
    assert shortcut_auc(train, test, CALC_BENIGN, CALC_MALIGNANT) < 0.65
    assert shortcut_auc(train, test, *range(5)) < 0.75


def test_a_grid_without_pixels_raises() -> None:
    with pytest.raises(BadSetting, match="at least 16 px"):
        Grid(8, 0.2)
