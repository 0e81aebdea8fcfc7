"""Annotated images → a finished patch store, one image a task over all cores, resumable."""

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mammo import store
from mammo.annotations import CLASSES, AnnotatedImage, Annotations, Lesion, Refused, refuse
from mammo.dicom import Mammogram, grey, load
from mammo.errors import BadAnnotation, BadPixels
from mammo.patches import (
    Mask,
    Roi,
    Sampling,
    cut,
    generator_for,
    make_roi,
    resize,
    resize_mask,
    sample,
    scaled_shape,
)
from mammo.pool import over_cores
from mammo.style import NO_STYLE, Style, is_styled
from mammofed.errors import BadData, BadSetting

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Extraction:
    """All settings of a store; the same ones give the same store, bit for bit."""

    sampling: Sampling = field(default_factory=Sampling)
    voi: str = "default"
    style: Style = NO_STYLE
    p: float = 1.0  # degree of heterogeneity: share of images that have the style

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise BadSetting(f"p {self.p}: a share from 0 to 1 is needed")

    def as_row(self) -> store.Row:
        """Plain JSON of the settings."""
        return {**asdict(self.sampling), "voi": self.voi, "style": str(self.style), "p": self.p}


def pseudonym(patient: str, seed: int) -> str:
    """Name of a patient within one store: not the identifier, and another one under another seed."""
    return hashlib.blake2b(patient.encode(), key=str(seed).encode(), digest_size=8).hexdigest()


def source_key(image: AnnotatedImage) -> str:
    """Key that changes with the file and with its annotation."""
    facts = image.path.stat()
    content = [image.name, image.split, facts.st_size, facts.st_mtime_ns, [str(one) for one in image.lesions]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]


def lesion_mask(lesion: Lesion, mammogram: Mammogram) -> Mask:
    """(H, W) mask of a lesion in the stored image."""
    shape = mammogram.words.shape
    if lesion.mask_folder is not None:
        return find_mask(lesion.mask_folder, shape)
    mask = np.zeros(shape, np.bool_)
    if lesion.box is not None:
        box = lesion.box
        mask[max(0, box.y) : max(0, box.y + box.height), max(0, box.x) : max(0, box.x + box.width)] = True
    if not mask.any():
        raise BadAnnotation(f"box of lesion {lesion.lesion_id!r} lies outside the image: correct the table")
    return mask


def find_mask(folder: Path, shape: tuple[int, ...]) -> Mask:
    """The file of a CBIS-DDSM ROI folder that is the mask: two values, and the full image's size."""
    for path in sorted(folder.rglob("*.dcm")):
        words = load(path).words
        if words.shape == shape:
            values = np.flatnonzero(np.bincount(words.ravel()))
            if len(values) == 2:
                return np.asarray(words == values[1])
    raise BadAnnotation(f"no file of two values and {shape[0]} × {shape[1]} pixels in {folder}: no mask")


def extract(image: AnnotatedImage, how: Extraction) -> tuple[store.Patches, list[store.Row]]:
    """Patches of one image, and their rows of the manifest."""
    sampling = how.sampling
    mammogram = load(image.path)
    style = how.style if is_styled(image.name, how.p, sampling.seed) else NO_STYLE
    shape = scaled_shape((mammogram.words.shape[0], mammogram.words.shape[1]), mammogram.spacing, sampling)
    picture = resize(grey(mammogram, how.voi, style), shape)
    lesions = [(lesion, make_roi(resize_mask(lesion_mask(lesion, mammogram), shape))) for lesion in image.lesions]
    known = [(lesion, roi) for lesion, roi in lesions if roi is not None]
    tissue = resize_mask(~mammogram.air, shape)
    rois: list[Roi] = [roi for _, roi in known]
    patches: list[NDArray[np.float32]] = []
    rows: list[store.Row] = []
    for place, centres in sample(rois, tissue, sampling, generator_for(image.name, sampling.seed)):
        lesion = None if place is None else known[place][0]
        patches += [cut(picture, centre, sampling.patch) for centre in centres]
        facts = {"style": str(style), "vendor": mammogram.vendor, "intent": mammogram.intent}
        rows += [_row(image, lesion, centre, sampling.seed) | facts for centre in centres.tolist()]
    if not rows:
        raise BadPixels("no tissue is found in the image: every patch would be air")
    stacked = np.array(patches, np.float32)
    return np.rint(stacked * store.LEVELS).astype(np.uint16), rows


def _row(image: AnnotatedImage, lesion: Lesion | None, centre: list[int], seed: int) -> store.Row:
    return {
        "source": image.name,
        "lesion": lesion.lesion_id if lesion else "",
        "class": CLASSES[lesion.label if lesion else 0],
        "patient": pseudonym(image.patient, seed),
        "split": image.split,
        "row": centre[0],
        "column": centre[1],
    }


def extract_shard(image: AnnotatedImage, folder: Path, how: Extraction) -> Refused | None:
    """Task of one worker: write the image's shard, or say why there is none."""
    try:
        patches, rows = extract(image, how)
    except BadData as error:
        return refuse(image.name, error, image.path)
    store.write_shard(folder, source_key(image), patches, rows)
    return None


def decoder_died(image: AnnotatedImage) -> Refused:
    """What is said of an image whose decoding ended its process."""
    return refuse(image.name, BadPixels("the decoder crashed or ran out of memory: export it again"))


def build_store(
    annotations: Annotations,
    folder: Path,
    how: Extraction,
    workers: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> store.Row:
    """Extract what is missing, then join it; give the index of the store."""
    store.start(folder, how.as_row())
    keys = {source_key(image): image for image in annotations.images}
    finished = store.finished_keys(folder)
    missing = [image for key, image in keys.items() if key not in finished]
    refused = [*annotations.refused]
    log.info("%d images, %d already extracted", len(keys), len(keys) - len(missing))
    done = len(keys) - len(missing)
    progress(done, len(keys))
    task = partial(extract_shard, folder=folder, how=how)
    for result in over_cores(task, missing, min(workers, len(missing)), decoder_died):
        done += 1
        progress(done, len(keys))
        refused += [result] if result else []
    return store.finish(folder, list(keys), how.as_row(), sorted(refused, key=lambda one: one.name))
