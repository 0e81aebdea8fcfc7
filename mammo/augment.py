"""Batch of patches → the same patches flipped, turned by right angles and shifted a little."""

import numpy as np
from numpy.typing import NDArray

SHIFT = 16  # shifts of at most 1/16 of the patch

Batch = NDArray[np.float32]  # (B, 1, H, W) in [0, 1]


def augment(batch: Batch, generator: np.random.Generator) -> Batch:
    """One of the eight symmetries of the square and a small shift for each patch; edges repeat themselves."""
    count, _, height, width = batch.shape
    symmetry = generator.integers(8 if height == width else 4, size=(count,))
    shifts: NDArray[np.int64] = generator.integers(-(height // SHIFT), height // SHIFT + 1, size=(count, 2))
    out = np.empty_like(batch)
    rows, columns = np.arange(height), np.arange(width)
    for place in range(count):
        down, right = shifts[place].tolist()
        turned = _turn(batch[place, 0], int(symmetry[place]))
        shifted = turned.take(rows + down, axis=0, mode="clip")
        shifted.take(columns + right, axis=1, mode="clip", out=out[place, 0])
    return out


def _turn(patch: NDArray[np.float32], symmetry: int) -> NDArray[np.float32]:
    """Bits: flip rows, flip columns, transpose; together all flips and rotations by 90°."""
    flipped = patch[:: -1 if symmetry & 1 else 1, :: -1 if symmetry & 2 else 1]
    return flipped.T if symmetry & 4 else flipped
