"""One DICOM file → what it says and shows, or why it cannot be used; over all cores for many of them."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydicom.misc import is_dicom

from mammo.annotations import Lesion, Refused, refuse
from mammo.deid import Identity, find_identity
from mammo.dicom import Mammogram, grey, mammogram_of, read_dataset, typed_errors
from mammo.errors import BadPixels
from mammo.lesions import locate
from mammo.pool import DIED, over_cores
from mammofed.errors import BadData

BINS = 64  # of a grey-level histogram
EDGE = 0.05  # share of the width in which the chest wall is looked for
CLEAR = 0.15  # difference of tissue shares that tells one edge from the other
OBLIQUE = (
    "MLO",
    "LMO",
    "MEDIO-LATERAL OBLIQUE",
    "LATERO-MEDIAL OBLIQUE",
)  # ViewPosition, or the view code's meaning
OTHER_FILES = frozenset(
    ".csv .txt .json .jsonl .html .md .xml .pdf .png .jpg .jpeg .tif .zip .gz .npy .log .py".split()  # noqa: SIM905
)
TABLES = ("vendor", "view", "laterality", "intent", "photometric", "transfer syntax", "LUT", "spacing")

Wanted = tuple[Path, tuple[Lesion, ...]]  # a file, and the lesions that tables place in it


@dataclass(frozen=True)
class FileFacts:
    """What one readable file says and shows."""

    name: str
    groups: dict[str, tuple[str, ...]]  # its entries in each of TABLES
    histogram: tuple[int, ...]  # (BINS,) of the tissue, from black to white
    content: str  # digest of the stored pixels
    side_fits: bool  # laterality, orientation and image agree, or nobody can tell
    identity: Identity
    lost: tuple[tuple[Lesion, Refused], ...] = ()  # lesions that cannot be located in it


@dataclass(frozen=True)
class Unusable:
    """A file that cannot be used; who it is about may be readable all the same."""

    refused: Refused
    identity: Identity | None = None  # none where not even the header can be read


def find_files(root: Path) -> list[Path]:
    """Every file that may be DICOM, in a fixed order; other known kinds and hidden files are left out."""
    if root.is_file():
        return [root]
    found = [Path(folder) / name for folder, _, names in os.walk(root) for name in names]
    return sorted(
        path
        for path in found
        if path.suffix.lower() not in OTHER_FILES and path.name != "DICOMDIR" and not path.name.startswith(".")
    )


def holds_dicom(root: Path) -> bool:
    """Whether some file says in its first bytes that it is DICOM."""
    return any(os.access(path, os.R_OK) and is_dicom(path) for path in find_files(root))


def name_of(path: Path, root: Path) -> str:
    """A file as the report names it: from the folder on, or in full where a table points out of it."""
    if path == root:
        return path.name
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def examine_all(
    wanted: Sequence[Wanted], root: Path, workers: int, progress: Callable[[int, int], None]
) -> tuple[list[FileFacts], list[Unusable]]:
    """Facts of the usable files, and the others, each by name."""
    facts: list[FileFacts] = []
    unusable: list[Unusable] = []
    for result in over_cores(partial(examine, root=root), wanted, workers, partial(_decoder_died, root=root)):
        if isinstance(result, FileFacts):
            facts.append(result)
        else:
            unusable.append(result)
        progress(len(facts) + len(unusable), len(wanted))
    return sorted(facts, key=lambda one: one.name), sorted(unusable, key=lambda one: one.refused.name)


def examine(wanted: Wanted, root: Path) -> FileFacts | Unusable:
    """Facts of one file, or the reason why it cannot be used, with what identity its header holds."""
    path, lesions = wanted
    name, identity = name_of(path, root), None
    try:
        with typed_errors(path):
            dataset = read_dataset(path)
            identity = find_identity(dataset, path)
            mammogram = mammogram_of(dataset)
        return _facts(name, mammogram, identity, lesions)
    except BadData as error:
        return Unusable(refuse(name, error, path), identity)


def _decoder_died(wanted: Wanted, root: Path) -> FileFacts | Unusable:
    return Unusable(refuse(name_of(wanted[0], root), BadPixels(DIED)))


def _facts(name: str, mammogram: Mammogram, identity: Identity, lesions: Sequence[Lesion]) -> FileFacts:
    picture, tissue = grey(mammogram), ~mammogram.air
    levels = np.minimum(picture[tissue] * BINS, BINS - 1).astype(np.intp)
    expected, found = expected_chest(mammogram), found_chest(tissue)
    sides = {implied_laterality(mammogram), mammogram.laterality}
    shape_and_words = repr(mammogram.words.shape).encode() + mammogram.words.tobytes()
    return FileFacts(
        name=name,
        groups=_groups(mammogram),
        histogram=tuple(np.bincount(levels, minlength=BINS).tolist()),
        content=hashlib.sha256(shape_and_words).hexdigest(),
        side_fits=("" in (expected, found) or expected == found) and sides != {"L", "R"},
        identity=identity,
        lost=tuple(
            (lesion, refuse(f"{name} lesion {lesion.lesion_id}", mask))
            for lesion, mask in locate(lesions, mammogram)
            if isinstance(mask, BadData)
        ),
    )


def _groups(mammogram: Mammogram) -> dict[str, tuple[str, ...]]:
    voi = tuple(voi.explanation or type(voi).__name__.lower() for voi in mammogram.pipeline.vois)
    origin = mammogram.spacing.origin if mammogram.spacing else "none"
    return {
        "vendor": (mammogram.vendor or "not stated",),
        "view": (mammogram.view or "not stated",),
        "laterality": (mammogram.laterality or "not stated",),
        "intent": (mammogram.intent or "not stated",),
        "photometric": (mammogram.photometric,),
        "transfer syntax": (mammogram.syntax,),
        "LUT": voi or ("none",),
        "spacing": (origin,),
    }


def expected_chest(mammogram: Mammogram) -> str:
    """Edge of the chest wall: opposite to anterior in PatientOrientation, else by laterality."""
    along_rows, along_columns = mammogram.orientation
    if along_rows or along_columns:
        return {"A": "left", "P": "right"}.get(along_rows[:1], "")
    return {"L": "left", "R": "right"}.get(mammogram.laterality, "")


def implied_laterality(mammogram: Mammogram) -> str:
    """Breast that the PatientOrientation of an oblique view can only be of; empty where it does not tell.

    The detector of an MLO or LMO runs from the axilla (up and outwards) down and inwards, so that towards foot and
    right is the left breast, however the image is turned or mirrored (PS3.3 C.7.6.1.1.1, C.8.11.7).
    """
    if mammogram.view.upper() not in OBLIQUE:
        return ""
    for letters in map(frozenset, mammogram.orientation):
        if letters in (frozenset("FR"), frozenset("HL")):
            return "L"
        if letters in (frozenset("FL"), frozenset("HR")):
            return "R"
    return ""


def found_chest(tissue: NDArray[np.bool_]) -> str:
    """Edge with clearly more tissue than the opposite one, left or right; empty where neither is clear."""
    strip = max(1, round(EDGE * tissue.shape[1]))
    left, right = float(tissue[:, :strip].mean()), float(tissue[:, -strip:].mean())
    if abs(left - right) < CLEAR:
        return ""
    return "left" if left > right else "right"
