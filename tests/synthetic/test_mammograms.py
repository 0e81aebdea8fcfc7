"""Whole mammograms have the anatomy of their view, and a box that holds the lesion."""

import numpy as np
import pytest

from mammofed.errors import BadSetting
from synthetic.lesions import BACKGROUND, CALC_MALIGNANT, CLASSES, MASS_BENIGN, MASS_MALIGNANT
from synthetic.mammograms import Image, View, draw_mammogram

COARSE = 0.4  # mm a pixel


def _draw(view: View, label: int = MASS_BENIGN, seed: int = 0) -> Image:
    return draw_mammogram(view, label, np.random.default_rng(seed))[0]


@pytest.mark.parametrize("position", ["CC", "MLO"])
@pytest.mark.parametrize("side", ["L", "R"])
def test_the_breast_lies_at_its_chest_wall_in_black_air(position: str, side: str) -> None:
    image = _draw(View(position, side, spacing=COARSE))  # type: ignore[arg-type]
    left, right = ((image[:, part] > 0).mean() for part in (slice(0, 20), slice(-20, None)))
    assert (left > 0.6, right == 0) == ((True, True) if side == "L" else (False, False))
    assert 0.25 < (image > 0).mean() < 0.8
    assert image.dtype == np.float32
    assert image.max() <= 1


def test_the_right_breast_mirrors_the_left() -> None:
    images, boxes = zip(
        *(
            draw_mammogram(View("CC", side, spacing=COARSE), MASS_BENIGN, np.random.default_rng(1))
            for side in ("L", "R")
        ),
        strict=True,
    )
    assert np.array_equal(images[0], images[1][:, ::-1])
    left, right = boxes[0][0], boxes[1][0]
    assert right.x + right.width == images[0].shape[1] - left.x


def test_only_the_oblique_view_shows_the_pectoral_muscle() -> None:
    corners = {}
    for position in ("CC", "MLO"):
        images = [_draw(View(position, spacing=COARSE), BACKGROUND, seed) for seed in range(5)]
        corners[position] = np.mean([image[:40, :30].mean() for image in images])
    assert corners["MLO"] > 0.5 > 0.1 > corners["CC"]


def test_the_skin_line_is_brighter_than_the_fat_under_it() -> None:
    profiles = []
    for seed in range(5):
        row = _draw(View("CC", spacing=0.25), BACKGROUND, seed)[400 - 120]  # off the nipple
        edge = int(np.flatnonzero(row)[-1])
        profiles.append(row[edge - 16 : edge + 1][::-1])
    mean = np.mean(profiles, axis=0)
    assert mean[2:5].max() > 1.2 * mean[10]


@pytest.mark.parametrize("label", range(1, len(CLASSES)))
def test_the_box_holds_the_lesion_and_lies_in_the_breast(label: int) -> None:
    for seed in range(4):
        view = View("MLO", "R", spacing=COARSE)
        image, boxes = draw_mammogram(view, label, np.random.default_rng(seed))
        assert [box.label for box in boxes] == [label]
        box = boxes[0]
        inside = image[box.y : box.y + box.height, box.x : box.x + box.width]
        assert inside.shape == (box.height, box.width)
        assert inside.min() > 0
        assert min(box.width, box.height) * COARSE >= 1
        assert max(box.width, box.height) * COARSE <= 14


def test_a_lesion_stands_out_of_its_box() -> None:
    brighter = []
    for seed in range(12):
        image, (box,) = draw_mammogram(View(spacing=COARSE), MASS_MALIGNANT, np.random.default_rng(seed))
        middle = image[box.y + box.height // 3 : box.y + 2 * box.height // 3 + 1]
        middle = middle[:, box.x + box.width // 3 : box.x + 2 * box.width // 3 + 1]
        around = image[box.y - 8 : box.y + box.height + 8, box.x - 8 : box.x + box.width + 8]
        brighter.append(middle.mean() > around.mean())
    assert np.mean(brighter) > 0.8


def test_a_background_has_no_box() -> None:
    assert draw_mammogram(View(spacing=COARSE), BACKGROUND, np.random.default_rng(0))[1] == ()


def test_a_generator_gives_the_same_mammogram() -> None:
    view = View("MLO", spacing=COARSE)
    assert np.array_equal(_draw(view, CALC_MALIGNANT, 5), _draw(view, CALC_MALIGNANT, 5))


@pytest.mark.parametrize("view", [{"spacing": 1.0}, {"spacing": 0.0}, {"width": 40.0}])
def test_a_view_that_cannot_be_drawn_raises(view: dict[str, float]) -> None:
    with pytest.raises(BadSetting, match=r"spacing|detector"):
        View(**view)  # type: ignore[arg-type]
