"""View, side and a generator → a whole mammogram in [0, 1] with its lesions' boxes, 0 being air.

Breast outline, skin line, nipple, pectoral muscle on the oblique view, fatty and glandular tissue with a
power-law texture, ligaments and ducts, and one lesion drawn as in a patch.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, gaussian_filter

from mammofed.errors import BadSetting
from synthetic.lesions import CLASSES, Grid, draw_fibres, draw_lesions
from synthetic.textures import power_law_texture

Image = NDArray[np.float32]  # (H, W)
LESION_FIELD = 14.0  # mm: the window that a lesion is drawn in, as of a patch


@dataclass(frozen=True)
class Box:
    """A lesion in pixels of the image: left, top, width, height."""

    label: int  # index of CLASSES
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class View:
    """What is imaged, and on how large a detector."""

    position: Literal["CC", "MLO"] = "CC"
    side: Literal["L", "R"] = "L"
    height: float = 200.0  # mm
    width: float = 130.0  # mm
    spacing: float = 0.2  # mm a pixel

    def __post_init__(self) -> None:
        if not 0.04 <= self.spacing <= 0.4:
            raise BadSetting(f"pixel spacing {self.spacing} mm: use 0.04 to 0.4")
        if min(self.height, self.width) < 6 * LESION_FIELD:
            raise BadSetting(f"detector of {self.height} × {self.width} mm: at least {6 * LESION_FIELD} a side")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return round(self.height / self.spacing), round(self.width / self.spacing)


def draw_mammogram(view: View, label: int, rng: np.random.Generator) -> tuple[Image, tuple[Box, ...]]:
    """Draw one view (H, W) in [0, 1] with one lesion of the label's class; none for a background."""
    depth, nipple = _breast(view, rng)
    muscle = _pectoral(view, rng)
    tissue = _tissue(view, depth, rng)
    boxes: tuple[Box, ...] = ()
    if CLASSES[label] != "background":
        boxes = (_add_lesion(tissue, label, _free_place(depth, muscle, view, rng), view, rng),)
    image = _project(tissue, depth, muscle, nipple, view)
    if view.side == "R":
        boxes = tuple(Box(b.label, image.shape[1] - b.x - b.width, b.y, b.width, b.height) for b in boxes)
        image = image[:, ::-1]
    return np.ascontiguousarray(image), boxes


def _breast(view: View, rng: np.random.Generator) -> tuple[Image, Image]:
    """Return the depth of each pixel under the skin in mm (0 outside), and the nipple's mask."""
    y, x = _axes(view)
    centre = view.height * (rng.uniform(0.46, 0.54) if view.position == "CC" else rng.uniform(0.55, 0.62))
    half = view.height * rng.uniform(0.36, 0.42)
    reach = view.width * rng.uniform(0.6, 0.85)
    across = np.abs(y - centre) / half
    if view.position == "MLO":  # towards the armpit the breast goes on beyond the detector
        across = np.where(y < centre, across * 0.55, across)
    power = rng.uniform(2.0, 2.4)
    inside = across**power + (x / reach) ** power < 1
    nipple = np.square((y - centre) / 5) + np.square((x - reach) / 4) < 1
    depth = distance_transform_edt(inside | nipple) * view.spacing
    return depth.astype(np.float32), gaussian_filter(nipple.astype(np.float32), 0.8 / view.spacing)


def _pectoral(view: View, rng: np.random.Generator) -> Image:
    """Return the pectoral muscle's cover in [0, 1]: a triangle at the chest wall above, oblique view only."""
    y, x = _axes(view)
    if view.position == "CC":
        return np.zeros(view.shape, np.float32)
    top, bottom = view.width * rng.uniform(0.3, 0.42), view.height * rng.uniform(0.5, 0.65)
    bulge = 3 * np.sin(np.pi * np.clip(y / bottom, 0, 1))
    edge = top * (1 - y / bottom) + bulge - x
    return np.asarray(np.clip(edge / 4 + 0.5, 0, 1), dtype=np.float32)


def _tissue(view: View, depth: Image, rng: np.random.Generator) -> Image:
    """Return fat and gland with their texture, about 0 for fat and 1 for gland."""
    rows, columns = view.shape
    side = int(scipy.fft.next_fast_len(max(view.shape) + 16, real=True))
    coarse = power_law_texture(1, side, rng, (3.0, 3.4))[0, :rows, :columns]
    fine = power_law_texture(1, side, rng, (2.4, 2.7))[0, :rows, :columns]
    gland = 1 / (1 + np.exp(-2.2 * (coarse + rng.uniform(-0.6, 0.8) + 0.03 * (depth.clip(0, 40) - 22))))
    fibres = draw_fibres(1, Grid(side, view.spacing), rng, most=50)[0, :rows, :columns]
    fibres = gaussian_filter(fibres, 0.25 / view.spacing)
    return np.asarray(0.75 * gland + 0.16 * fine + 0.3 * fibres, dtype=np.float32)


def _free_place(depth: Image, muscle: Image, view: View, rng: np.random.Generator) -> tuple[int, int]:
    """Choose the corner of a lesion's window whose middle lies deep in the breast, off the muscle."""
    half = round(LESION_FIELD / view.spacing) // 2
    free = (depth > 0.75 * LESION_FIELD) & (muscle == 0)
    free[: half + 1] = free[-half - 1 :] = False
    free[:, : half + 1] = free[:, -half - 1 :] = False
    places = np.flatnonzero(free)
    row, column = divmod(int(places[rng.integers(len(places))]), view.shape[1])
    return row - half, column - half


def _add_lesion(tissue: Image, label: int, corner: tuple[int, int], view: View, rng: np.random.Generator) -> Box:
    """Add a lesion to the tissue, in the window's own contrast, and return its box."""
    grid = Grid(round(LESION_FIELD / view.spacing), view.spacing)
    sharp = draw_lesions(np.array([label]), grid, rng)[0]
    top, left = corner
    window = tissue[top : top + grid.size, left : left + grid.size]
    contrast = max(0.08, float(window.std()))
    window += np.float32(1.2 * contrast) * gaussian_filter(sharp, rng.uniform(0.08, 0.2) / view.spacing)
    rows, columns = (np.flatnonzero((sharp > 0.1 * sharp.max()).any(axis=axis)) for axis in (1, 0))
    width, height = int(columns[-1] - columns[0] + 1), int(rows[-1] - rows[0] + 1)
    return Box(label, left + int(columns[0]), top + int(rows[0]), width, height)


def _project(tissue: Image, depth: Image, muscle: Image, nipple: Image, view: View) -> Image:
    """Return grey levels: thinner towards the skin, the skin line brighter, the muscle brightest, air 0."""
    thickness = 1 - np.exp(-depth / 9)
    image = thickness * (0.16 + 0.42 * tissue)
    image += 0.16 * np.exp(-np.square((depth - 0.8) / 0.7)) + 0.18 * nipple * (depth < 6)
    covered = 0.54 + 0.14 * (tissue - 0.5)
    image = np.where(muscle > 0, image * (1 - muscle) + np.maximum(image, covered) * muscle, image)
    image = gaussian_filter(image * (depth > 0), 0.08 / view.spacing)
    return np.where(depth > 0, np.clip(image, 0.02, 1), 0).astype(np.float32)


def _axes(view: View) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return y (H, 1) and x (1, W) in mm, x from the chest wall."""
    rows, columns = view.shape
    return np.arange(rows)[:, None] * view.spacing, np.arange(columns)[None, :] * view.spacing
