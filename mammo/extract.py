"""Annotated images → a finished patch store, one image a task over all cores, resumable."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mammo import store
from mammo.annotations import CLASSES, AnnotatedImage, Annotations, Lesion, Refused, refuse
from mammo.dicom import Mammogram, grey, grey_words, load
from mammo.errors import BadAnnotation, BadPixels, NotDicom
from mammo.lesions import locate
from mammo.lut import as_words
from mammo.patches import (
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
from mammo.pool import DIED, over_cores
from mammo.style import NO_STYLE, Style, is_styled
from mammofed.errors import BadData, BadSetting
from mammofed.files import held

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
    """Key that changes with the file, its annotation and its masks, wherever the folder stands."""
    content = [image.name, image.patient, image.split, _stamp(image.path), image.unlocated]
    content += [[_lesion_facts(one) for one in lesions] for lesions in (image.lesions, image.avoided)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]


def _lesion_facts(lesion: Lesion) -> list[object]:
    facts = [lesion.lesion_id, lesion.label, str(lesion.box)]
    folder = lesion.mask_folder
    if folder is None:
        return facts
    masks = [[str(path.relative_to(folder)), _stamp(path)] for path in sorted(folder.rglob("*.dcm"))]
    return [*facts, folder.name, masks]


def _stamp(path: Path) -> list[int]:
    facts = path.stat()
    return [facts.st_size, facts.st_mtime_ns]


class Extracted(NamedTuple):
    """What one image gives."""

    patches: store.Patches
    rows: list[store.Row]  # of the manifest, one a patch
    lost: list[Refused]  # its lesions that cannot be located


def extract(image: AnnotatedImage, how: Extraction) -> Extracted:
    """Patches of one image; where a lesion cannot be located, those of the others and no background."""
    sampling = how.sampling
    mammogram = load(image.path)
    style = how.style if is_styled(image.name, how.p, sampling.seed) else NO_STYLE
    shape = scaled_shape((mammogram.words.shape[0], mammogram.words.shape[1]), mammogram.spacing, sampling)
    picture = picture_of(mammogram, how.voi, style, shape)
    known, lost = find_rois(image.lesions, mammogram, shape)
    avoided, others_lost = find_rois(image.avoided, mammogram, shape)
    no_background = bool(image.unlocated or lost or others_lost)
    tissue, generator = resize_mask(~mammogram.air, shape), generator_for(image.name, sampling.seed)
    facts = {"style": str(style), "vendor": mammogram.vendor, "intent": mammogram.intent}
    patches: list[NDArray[np.uint16]] = []
    rows: list[store.Row] = []
    rois, avoided_rois = [roi for _, roi in known], [roi for _, roi in avoided]
    for place, centres in sample(rois, avoided_rois, tissue, sampling, generator):
        if place is None and no_background:
            continue
        lesion = None if place is None else known[place][0]
        patches += [cut(picture, centre, sampling.patch) for centre in centres]
        rows += [_row(image, lesion, centre, sampling.seed) | facts for centre in centres.tolist()]
    refused = [refuse(f"{image.name} lesion {lesion.lesion_id}", error) for lesion, error in lost]
    if not rows and refused:
        raise BadAnnotation("; ".join(one.reason for one in refused))
    if not rows:
        raise BadPixels("no patch can be taken: no tissue, or a lesion that is not known where")
    return Extracted(np.array(patches), rows, refused)


def find_rois(
    lesions: Sequence[Lesion], mammogram: Mammogram, shape: tuple[int, int]
) -> tuple[list[tuple[Lesion, Roi]], list[tuple[Lesion, BadData]]]:
    """Lesions and where they lie at the scale of the patches; and those that cannot be located."""
    known: list[tuple[Lesion, Roi]] = []
    lost: list[tuple[Lesion, BadData]] = []
    for lesion, found in locate(lesions, mammogram):
        if isinstance(found, BadData):
            lost.append((lesion, found))
            continue
        roi = make_roi(resize_mask(found, shape))
        known += [(lesion, roi)] if roi is not None else []
    return known, lost


def picture_of(mammogram: Mammogram, voi: str, style: Style, shape: tuple[int, int]) -> NDArray[np.uint16]:
    """Grey levels from 0 to 65535 at the scale of the patches."""
    if mammogram.words.shape == shape:
        return grey_words(mammogram, voi, style)
    return as_words(resize(grey(mammogram, voi, style), shape))


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


def extract_shard(keyed: tuple[str, AnnotatedImage], folder: Path, how: Extraction) -> tuple[str, Refused | None]:
    """Task of one worker: write the image's shard under its key, or say why there is none."""
    key, image = keyed
    try:
        extracted = extract(image, how)
    except (BadData, OSError) as error:
        return key, refuse_file(image, error)
    store.write_shard(folder, key, *extracted)
    return key, None


def refuse_file(image: AnnotatedImage, error: BadData | OSError) -> Refused:
    """What is said of an image that cannot be used, or that went while it was wanted."""
    if isinstance(error, OSError):
        error = NotDicom(f"cannot be read ({error.strerror or type(error).__name__})")
    return refuse(image.name, error, image.path)


def decoder_died(keyed: tuple[str, AnnotatedImage]) -> tuple[str, Refused | None]:
    """What is said of an image whose decoding ended its process."""
    key, image = keyed
    return key, refuse(image.name, BadPixels(DIED))


def keyed_images(images: Iterable[AnnotatedImage]) -> tuple[dict[str, AnnotatedImage], list[Refused]]:
    """Images by key, and those whose files went since the tables were read."""
    keyed: dict[str, AnnotatedImage] = {}
    gone: list[Refused] = []
    for image in images:
        try:
            keyed[source_key(image)] = image
        except OSError as error:
            gone.append(refuse_file(image, error))
    return keyed, gone


def build_store(
    annotations: Annotations,
    folder: Path,
    how: Extraction,
    workers: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> store.Row:
    """Extract what is missing, and join it meanwhile; give the index of the store."""
    store.check_place(folder)
    with held(folder, "mammofed patches"):
        store.start(folder, how.as_row())
        images, gone = keyed_images(annotations.images)
        finished = store.finished_keys(folder) & images.keys()
        missing = [keyed for keyed in images.items() if keyed[0] not in finished]
        log.info("%d images, %d already extracted", len(images), len(finished))
        task = partial(extract_shard, folder=folder, how=how)
        results = over_cores(task, missing, workers, decoder_died)
        done = in_order(list(images), finished, results, progress)
        return store.finish(folder, done, how.as_row(), [*annotations.refused, *gone])


def in_order(
    keys: Sequence[str],
    finished: Set[str],
    results: Iterator[tuple[str, Refused | None]],
    progress: Callable[[int, int], None],
) -> Iterator[tuple[str, Refused | None]]:
    """Each key with its refusal, if any, as soon as it and all before it are done."""
    done: dict[str, Refused | None] = dict.fromkeys(finished)
    progress(len(done), len(keys))
    for key in keys:
        while key not in done:
            name, refused = next(results)
            done[name] = refused
            progress(len(done), len(keys))
        yield key, done[key]
