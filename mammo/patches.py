"""One image with its lesions → where patches lie, sampled after Shen et al. (Sci Rep 9:12495, 2019)."""

import hashlib
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mammo.errors import MissingTag, TooLarge
from mammo.header import MAX_PIXELS, Spacing
from mammofed.errors import BadSetting

LESION_OVERLAP, BACKGROUND_OVERLAP, RELAX_BY = 0.75, 0.35, 0.05
MISSES = 1000  # before the overlap of a lesion patch is relaxed
PATIENCE = 10  # blocks of draws before background is given up: a small breast full of lesions has none

Scalar = TypeVar("Scalar", bound=np.generic)
Mask = NDArray[np.bool_]
Centres = NDArray[np.int64]  # (n, 2): row, column


@dataclass(frozen=True)
class Sampling:
    """How patches are taken from an image."""

    patch: int = 256  # pixels, square
    height: int = 4096  # pixels: taller images are made smaller
    spacing_mm: float | None = None  # instead of the height: millimetres a pixel after resizing
    per_lesion: int = 30  # patches of each lesion, and as many of background
    seed: int = 0

    def __post_init__(self) -> None:
        if not 8 <= self.patch <= 2048 or not 64 <= self.height <= 8192:
            raise BadSetting(f"patch {self.patch}, height {self.height}: 8 to 2048 and 64 to 8192 pixels")
        if self.spacing_mm is not None and not 0.01 <= self.spacing_mm <= 10:
            raise BadSetting(f"spacing {self.spacing_mm} mm: 0.01 to 10 is needed")
        if not 1 <= self.per_lesion <= 10_000:
            raise BadSetting(f"{self.per_lesion} patches a lesion: 1 to 10000 is needed")


@dataclass(frozen=True)
class Roi:
    """A lesion's mask as a summed-area table over its bounding box: overlaps cost four look-ups."""

    top: int
    left: int
    table: NDArray[np.int64]  # (height + 1, width + 1)

    @property
    def area(self) -> int:
        """Pixels of the mask."""
        return int(self.table[-1, -1])


def generator_for(name: str, seed: int) -> np.random.Generator:
    """Randomness of one image, from the seed and its own name: order and number of workers do not matter."""
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest, "<u4").tolist()])


def scaled_shape(shape: tuple[int, int], spacing: Spacing | None, sampling: Sampling) -> tuple[int, int]:
    """Size of the image after resizing, to a physical scale or to a height at most."""
    if sampling.spacing_mm is None:
        factor = min(1.0, sampling.height / shape[0])
        factors = factor, factor
    elif spacing is None:
        raise MissingTag("no pixel spacing in the file: choose a height in pixels instead of a physical scale")
    else:
        factors = spacing.row_mm / sampling.spacing_mm, spacing.column_mm / sampling.spacing_mm
    rows, columns = (max(1, round(side * factor)) for side, factor in zip(shape, factors, strict=True))
    if rows * columns > MAX_PIXELS:
        raise TooLarge(f"{rows} × {columns} pixels at {sampling.spacing_mm} mm: choose a coarser scale")
    return rows, columns


def resize(grey: NDArray[np.float32], shape: tuple[int, int]) -> NDArray[np.float32]:
    """Resize with an area-aware filter: shrinking averages, so that calcifications fade but do not vanish."""
    if grey.shape == shape:
        return grey
    return np.asarray(Image.fromarray(grey).resize(shape[::-1], Image.Resampling.BILINEAR), dtype=np.float32)


def resize_mask(mask: Mask, shape: tuple[int, int]) -> Mask:
    """Resize by nearest neighbour."""
    rows, columns = (np.arange(new) * old // new for new, old in zip(shape, mask.shape, strict=True))
    return mask if mask.shape == shape else mask[np.ix_(rows, columns)]


def make_roi(mask: Mask) -> Roi | None:
    """Summed-area table of the mask's bounding box; none where the mask is empty."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return None
    inside = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    table = np.zeros((inside.shape[0] + 1, inside.shape[1] + 1), np.int64)
    table[1:, 1:] = inside.cumsum(axis=0, dtype=np.int64).cumsum(axis=1)
    return Roi(int(rows[0]), int(columns[0]), table)


def overlap(roi: Roi, centres: Centres, patch: int) -> NDArray[np.float64]:
    """The greater of intersection / ROI and intersection / patch, for each centre."""
    height, width = roi.table.shape
    top, left = centres[:, 0] - patch // 2 - roi.top, centres[:, 1] - patch // 2 - roi.left
    t, b = np.clip(top, 0, height - 1), np.clip(top + patch, 0, height - 1)
    l, r = np.clip(left, 0, width - 1), np.clip(left + patch, 0, width - 1)  # noqa: E741
    inside = roi.table[b, r] - roi.table[t, r] - roi.table[b, l] + roi.table[t, l]
    return np.asarray(inside / min(roi.area, patch * patch), dtype=np.float64)


def draw(generator: np.random.Generator, low: tuple[int, int], high: tuple[int, int]) -> Centres:
    """A block of uniform centres with low ≤ (row, column) < high."""
    return generator.integers(low, high, size=(MISSES, 2), dtype=np.int64)


def lesion_centres(roi: Roi, patch: int, count: int, generator: np.random.Generator) -> Centres:
    """Centres whose patch overlaps the lesion above 0.75, relaxed by 0.05 after each 1,000 misses."""
    height, width = (side - 1 for side in roi.table.shape)
    found: list[Centres] = []
    cutoff, misses = LESION_OVERLAP, 0
    while sum(map(len, found)) < count and cutoff > 0:
        centres = draw(generator, (roi.top, roi.left), (roi.top + height, roi.left + width))
        good = centres[overlap(roi, centres, patch) > cutoff]
        found.append(good)
        misses += MISSES - len(good)
        if misses >= MISSES:
            cutoff, misses = cutoff - RELAX_BY, 0
    return np.concatenate(found)[:count]


def background_centres(
    rois: list[Roi],
    tissue: Mask,
    patch: int,
    count: int,
    generator: np.random.Generator,
    near: Roi | None = None,
) -> Centres:
    """Centres on tissue whose patch overlaps no lesion above 0.35; near one lesion: hard negatives."""
    low, high = (0, 0), tissue.shape
    if near is not None:
        reach = patch // 2
        low = max(0, near.top - reach), max(0, near.left - reach)
        ends = near.top + near.table.shape[0] + reach, near.left + near.table.shape[1] + reach
        high = min(high[0], ends[0]), min(high[1], ends[1])
    found: list[Centres] = []
    for _ in range(PATIENCE):
        centres = draw(generator, low, (high[0], high[1]))
        good = tissue[centres[:, 0], centres[:, 1]]
        for roi in rois:
            good &= overlap(roi, centres, patch) <= BACKGROUND_OVERLAP
        found.append(centres[good])
        if sum(map(len, found)) >= count:
            break
    return np.concatenate(found)[:count]


def cut(image: NDArray[Scalar], centre: NDArray[np.int64], patch: int) -> NDArray[Scalar]:
    """Patch (patch, patch) around a centre; beyond the image there is air, which is 0."""
    out = np.zeros((patch, patch), image.dtype)
    top, left = (int(c) - patch // 2 for c in centre)
    rows = slice(max(0, top), max(0, min(image.shape[0], top + patch)))
    columns = slice(max(0, left), max(0, min(image.shape[1], left + patch)))
    inside = image[rows, columns]
    at = rows.start - top, columns.start - left
    out[at[0] : at[0] + inside.shape[0], at[1] : at[1] + inside.shape[1]] = inside
    return out


def sample(
    rois: list[Roi], avoided: list[Roi], tissue: Mask, sampling: Sampling, generator: np.random.Generator
) -> list[tuple[int | None, Centres]]:
    """Centres of lesion patches (with the lesion's place in `rois`) and of background (None); never only air.

    Half of the background are hard negatives; an image without lesions gives background as if it had one.
    Background lies on none of the lesions, avoided ones included.
    """
    patch, count, all_rois = sampling.patch, sampling.per_lesion, [*rois, *avoided]
    drawn: list[tuple[int | None, Centres]] = []
    for place, roi in enumerate(rois):
        drawn.append((place, lesion_centres(roi, patch, count, generator)))
        drawn.append((None, background_centres(all_rois, tissue, patch, count // 2, generator, near=roi)))
    others = count if not rois else len(rois) * (count - count // 2)
    drawn.append((None, background_centres(all_rois, tissue, patch, others, generator)))
    return [(place, centres[_has_tissue(tissue, centres, patch)]) for place, centres in drawn]


def _has_tissue(tissue: Mask, centres: Centres, patch: int) -> Mask:
    return np.array([cut(tissue, centre, patch).any() for centre in centres], dtype=np.bool_)
