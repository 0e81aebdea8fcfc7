"""Grey levels → where there is no breast: a threshold between air and tissue, and its largest region."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

WORKING_SIZE = 256  # pixels along the longer side: the outline needs no more
BINS = 256
CLOSED = 2  # working pixels: narrower gaps in the tissue are shadows, not air


def otsu_threshold(values: NDArray[np.float32]) -> float:
    """Grey level that best parts values in [0, 1] in two classes (Otsu 1979)."""
    counts = np.bincount((values.ravel() * (BINS - 1)).astype(np.intp), minlength=BINS).astype(np.float64)
    below, levels = np.cumsum(counts), np.cumsum(counts * np.arange(BINS))
    above = below[-1] - below
    with np.errstate(divide="ignore", invalid="ignore"):
        between = below * above * (levels / below - (levels[-1] - levels) / above) ** 2
    return (float(np.nanargmax(np.where(above > 0, between, 0))) + 1) / (BINS - 1)


def estimate_air(grey: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(H, W) outside the largest bright region; a file without pixel padding says nothing better."""
    step = max(1, max(grey.shape) // WORKING_SIZE)
    small = grey[::step, ::step]
    tissue = small >= otsu_threshold(small) / 2  # half: fat and skin are darker than the gland
    tissue = ndimage.binary_closing(np.pad(tissue, CLOSED), iterations=CLOSED)[CLOSED:-CLOSED, CLOSED:-CLOSED]
    regions, count = ndimage.label(tissue)
    if count:
        sizes = np.bincount(regions.ravel())
        sizes[0] = 0
        tissue = ndimage.binary_fill_holes(regions == sizes.argmax())
    height, width = grey.shape
    return np.asarray((~tissue).repeat(step, axis=1)[:, :width].repeat(step, axis=0)[:height])
