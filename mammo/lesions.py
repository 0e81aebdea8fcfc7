"""Lesion of an annotation table and its image → where it lies, or why nobody knows."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from mammo.annotations import Lesion
from mammo.dicom import Mammogram, load
from mammo.errors import BadAnnotation
from mammo.patches import Mask
from mammofed.errors import BadData


def locate(lesions: Iterable[Lesion], mammogram: Mammogram) -> Iterator[tuple[Lesion, Mask | BadData]]:
    """Each lesion with its mask, or with the reason why it has none: the others go on."""
    for lesion in lesions:
        try:
            yield lesion, lesion_mask(lesion, mammogram.words.shape)
        except BadData as error:
            yield lesion, error


def lesion_mask(lesion: Lesion, shape: tuple[int, ...]) -> Mask:
    """(H, W) mask of a lesion in the stored image."""
    if lesion.mask_folder is not None:
        return find_mask(lesion.mask_folder, shape)
    mask = np.zeros(shape, np.bool_)
    if lesion.box is not None:
        box = lesion.box
        mask[max(0, box.y) : max(0, box.y + box.height), max(0, box.x) : max(0, box.x + box.width)] = True
    if not mask.any():
        size = f"{shape[1]} pixels wide, {shape[0]} high"
        raise BadAnnotation(
            f"box of lesion {lesion.lesion_id!r} lies outside the image ({size}): correct the table"
        )
    return mask


def find_mask(folder: Path, shape: tuple[int, ...]) -> Mask:
    """The file of a CBIS-DDSM ROI folder that is the mask: two values, and the full image's size."""
    unreadable = 0
    for path in sorted(folder.rglob("*.dcm")):
        try:
            words = load(path).words
        except BadData:  # the crop, maybe: the mask may still follow
            unreadable += 1
            continue
        if words.shape == shape:
            values = np.flatnonzero(np.bincount(words.ravel()))
            if len(values) == 2:
                return np.asarray(words == values[1])
    wanted = f"no file of two values and {shape[0]} × {shape[1]} pixels in {folder}"
    raise BadAnnotation(f"{wanted}, {unreadable} unreadable: no mask")
