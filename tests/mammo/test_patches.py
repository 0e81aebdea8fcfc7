"""Patches lie where Shen et al. put them, whatever the order or the number of workers."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mammo.annotations import AnnotatedImage, Box, Lesion
from mammo.errors import BadAnnotation, MissingTag, TooLarge
from mammo.extract import Extraction, extract
from mammo.header import Spacing
from mammo.patches import (
    Sampling,
    background_centres,
    cut,
    generator_for,
    lesion_centres,
    make_roi,
    overlap,
    resize,
    resize_mask,
    sample,
    scaled_shape,
)
from mammo.style import parse_style
from mammofed.errors import BadSetting
from tests.mammo.files import breast, save


def disc(
    shape: tuple[int, int], row: int, column: int, radius: int
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    y, x = np.mgrid[: shape[0], : shape[1]]
    return np.asarray((y - row) ** 2 + (x - column) ** 2 <= radius**2)


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 50), st.integers(1, 20), st.integers(-30, 90), st.integers(-30, 90))
def test_the_overlap_is_that_of_counting_pixels(row: int, column: int, radius: int, y: int, x: int) -> None:
    mask = disc((64, 56), row, column, radius)
    roi = make_roi(mask)
    assert roi is not None
    inside = int(cut(mask, np.array([y, x]), 16).sum())
    expected = max(inside / mask.sum(), inside / 256)
    assert overlap(roi, np.array([[y, x]]), 16)[0] == pytest.approx(expected)


@pytest.mark.parametrize("radius", [5, 40])
def test_lesion_patches_overlap_above_the_cutoff(radius: int) -> None:
    roi = make_roi(disc((300, 200), 150, 100, radius))
    assert roi is not None
    centres = lesion_centres(roi, 32, 30, np.random.default_rng(0))
    assert centres.shape == (30, 2)
    assert (overlap(roi, centres, 32) > 0.75).all()


def test_a_lesion_that_cannot_reach_the_cutoff_relaxes_it() -> None:
    """Two specks at the ends of a line of 60 pixels: a patch of 32 holds one of them, 0.5 of the ROI."""
    mask = np.zeros((100, 100), np.bool_)
    mask[50, 20] = mask[50, 79] = True
    roi = make_roi(mask)
    assert roi is not None
    centres = lesion_centres(roi, 32, 30, np.random.default_rng(0))
    assert len(centres) == 30
    assert (overlap(roi, centres, 32) == 0.5).all()


def test_background_overlaps_no_lesion_and_hard_negatives_are_near() -> None:
    rois = [roi for roi in (make_roi(disc((400, 300), y, 90, 20)) for y in (100, 300)) if roi is not None]
    tissue = np.zeros((400, 300), np.bool_)
    tissue[:, :180] = True
    far = background_centres(rois, tissue, 32, 200, np.random.default_rng(0))
    near = background_centres(rois, tissue, 32, 200, np.random.default_rng(0), near=rois[0])
    for centres in (far, near):
        assert len(centres) == 200
        assert all((overlap(roi, centres, 32) <= 0.35).all() for roi in rois)
        assert tissue[centres[:, 0], centres[:, 1]].all()
    assert (np.abs(near - [100, 90]).max(axis=1) <= 20 + 16 + 1).all()
    assert (np.abs(far - [100, 90]).max(axis=1) > 60).any()


def test_half_of_the_background_are_hard_negatives() -> None:
    roi = make_roi(disc((400, 300), 200, 90, 20))
    assert roi is not None
    drawn = sample([roi], [], np.ones((400, 300), np.bool_), Sampling(patch=32), np.random.default_rng(0))
    assert [(place, len(centres)) for place, centres in drawn] == [(0, 30), (None, 15), (None, 15)]


def test_an_image_without_tissue_gives_nothing() -> None:
    drawn = sample([], [], np.zeros((400, 300), np.bool_), Sampling(patch=32), np.random.default_rng(0))
    assert sum(len(centres) for _, centres in drawn) == 0


def test_a_patch_beyond_the_edge_is_black_there() -> None:
    image = np.ones((10, 10), np.float32)
    patch = cut(image, np.array([0, 9]), 8)
    np.testing.assert_array_equal(patch[4:, :5], 1)
    assert patch.sum() == 4 * 5


def test_scales_are_pixels_or_millimetres() -> None:
    spacing = Spacing(0.1, 0.05, "PixelSpacing")
    assert scaled_shape((8192, 2000), spacing, Sampling(height=4096)) == (4096, 1000)
    assert scaled_shape((3000, 2000), spacing, Sampling(height=4096)) == (3000, 2000)
    assert scaled_shape((3000, 2000), spacing, Sampling(spacing_mm=0.2)) == (1500, 500)
    with pytest.raises(MissingTag, match="spacing"):
        scaled_shape((3000, 2000), None, Sampling(spacing_mm=0.2))
    with pytest.raises(TooLarge, match="coarser"):
        scaled_shape((8000, 8000), Spacing(9, 9, "PixelSpacing"), Sampling(spacing_mm=0.01))
    with pytest.raises(BadSetting, match="patch 4"):
        Sampling(patch=4)


def test_resizing_keeps_the_mean_and_the_place() -> None:
    mask = disc((128, 96), 40, 60, 10)
    small = resize(mask.astype(np.float32), (64, 48))
    assert small.mean() == pytest.approx(mask.mean(), rel=0.02)
    assert resize_mask(mask, (64, 48))[20, 30]
    assert not resize_mask(mask, (64, 48))[30, 20]


def annotated(folder: Path, *lesions: Lesion) -> AnnotatedImage:
    path = save(folder / "a.dcm", breast(400, 300), ImagerPixelSpacing=[0.1, 0.1])
    return AnnotatedImage("a.dcm", path, "ann", "train", lesions)


LESION = Lesion("one", 2, Box(60, 180, 50, 40))
HOW = Extraction(Sampling(patch=32, per_lesion=10))


def test_extraction_is_the_same_from_the_same_seed(tmp_path: Path) -> None:
    image = annotated(tmp_path, LESION)
    patches, rows, _ = extract(image, HOW)
    again, same, _ = extract(image, HOW)
    other, *_ = extract(image, Extraction(Sampling(patch=32, per_lesion=10, seed=1)))
    np.testing.assert_array_equal(patches, again)
    assert rows == same
    assert not np.array_equal(patches, other)
    assert [row["class"] for row in rows] == ["mass_malignant"] * 10 + ["background"] * 10
    assert "ann" not in str(rows)


def test_the_style_is_applied_to_a_share_of_the_images(tmp_path: Path) -> None:
    image = annotated(tmp_path, LESION)
    how = [Extraction(Sampling(patch=32), style=parse_style("sigmoid:0.3:0.2"), p=p) for p in (0, 1)]
    plain, styled = (extract(image, one) for one in how)
    assert {row["style"] for row in plain.rows} == {"none"}
    assert {row["style"] for row in styled.rows} == {"sigmoid:0.3:0.2"}
    assert [(r["row"], r["column"]) for r in plain.rows] == [(r["row"], r["column"]) for r in styled.rows]
    assert not np.array_equal(plain.patches, styled.patches)


def test_a_patch_is_the_image_at_its_place(tmp_path: Path) -> None:
    image = annotated(tmp_path, LESION)
    patches, rows, _ = extract(image, HOW)
    grey = breast(400, 300) / 4095
    expected = cut(grey, np.array([rows[0]["row"], rows[0]["column"]]), 32)
    np.testing.assert_allclose(patches[0] / 65535, expected, atol=1e-5)


def test_a_box_outside_the_image_raises(tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation, match="outside"):
        extract(annotated(tmp_path, Lesion("x", 1, Box(5000, 0, 5, 5))), HOW)


def test_each_image_has_its_own_randomness() -> None:
    assert generator_for("a", 0).random() == generator_for("a", 0).random()
    assert generator_for("a", 0).random() != generator_for("b", 0).random()
