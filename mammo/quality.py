"""Folder of DICOM files (and annotation tables) → a report: counts, findings, whether it can train."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mammo.annotations import CLASSES, Annotations, Refused, refuse
from mammo.deid import NOTICE, Identity, find_identity
from mammo.dicom import Mammogram, grey, mammogram_of, read_dataset, typed_errors
from mammo.errors import BadPixels
from mammo.pool import over_cores
from mammofed.errors import BadData

BINS = 64  # of a grey-level histogram
EDGE = 0.05  # share of the width in which the chest wall is looked for
CLEAR = 0.15  # difference of tissue shares that tells one edge from the other
OTHER_FILES = frozenset(
    ".csv .txt .json .jsonl .html .md .xml .pdf .png .jpg .jpeg .tif .zip .gz .npy .log .py".split()  # noqa: SIM905
)
TABLES = ("vendor", "view", "laterality", "intent", "photometric", "transfer syntax", "LUT", "spacing")
Counts = dict[str, dict[str, int]]


@dataclass(frozen=True)
class FileFacts:
    """What one readable file says and shows."""

    name: str
    groups: dict[str, tuple[str, ...]]  # its entries in each of TABLES
    histogram: tuple[int, ...]  # (BINS,) of the tissue, from black to white
    content: str  # digest of the stored pixels
    side_fits: bool  # the chest wall is where laterality and orientation put it, or nobody can tell
    identity: Identity


@dataclass(frozen=True)
class Report:
    """All findings; values of patient tags are nowhere in it."""

    files: int
    usable: int
    counts: Counts
    histograms: dict[str, list[int]]  # by vendor
    duplicates: list[list[str]]
    wrong_side: list[str]
    identity: dict[str, int]  # finding → number of files
    unreadable: list[Refused]
    refused_rows: list[Refused]
    warnings: list[str]
    problems: list[str]  # each of them: cannot train
    notice: str = NOTICE

    @property
    def exit_code(self) -> int:
        """0: fine, 1: warnings, 2: cannot train."""
        return 2 if self.problems else 1 if self.warnings else 0


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


def examine(path: Path, root: Path) -> FileFacts | Refused:
    """Facts of one file, or the reason why it cannot be read."""
    name = str(path.relative_to(root)) if path != root else path.name
    try:
        with typed_errors(path):
            dataset = read_dataset(path)
            identity = find_identity(dataset, path)
            mammogram = mammogram_of(dataset)
        return _facts(name, mammogram, identity)
    except BadData as error:
        return refuse(name, error, path)


def _facts(name: str, mammogram: Mammogram, identity: Identity) -> FileFacts:
    picture, tissue = grey(mammogram), ~mammogram.air
    levels = np.minimum(picture[tissue] * BINS, BINS - 1).astype(np.intp)
    expected, found = expected_chest(mammogram), found_chest(tissue)
    shape_and_words = repr(mammogram.words.shape).encode() + mammogram.words.tobytes()
    return FileFacts(
        name=name,
        groups=_groups(mammogram),
        histogram=tuple(np.bincount(levels, minlength=BINS).tolist()),
        content=hashlib.sha256(shape_and_words).hexdigest(),
        side_fits="" in (expected, found) or expected == found,
        identity=identity,
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


def found_chest(tissue: NDArray[np.bool_]) -> str:
    """Edge with clearly more tissue than the opposite one, left or right; empty where neither is clear."""
    strip = max(1, round(EDGE * tissue.shape[1]))
    left, right = float(tissue[:, :strip].mean()), float(tissue[:, -strip:].mean())
    if abs(left - right) < CLEAR:
        return ""
    return "left" if left > right else "right"


def inspect_folder(
    root: Path,
    annotations: Annotations | None,
    workers: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Report, list[FileFacts]]:
    """Examine every file over the cores, then sum up."""
    files = leave_masks(find_files(root), annotations)
    results: list[FileFacts | Refused] = []
    died = partial(_decoder_died, root=root)
    for result in over_cores(partial(examine, root=root), files, min(workers, len(files)), died):
        results.append(result)
        progress(len(results), len(files))
    facts = sorted((one for one in results if isinstance(one, FileFacts)), key=lambda one: one.name)
    unreadable = sorted((one for one in results if isinstance(one, Refused)), key=lambda one: one.name)
    return summarise(root, facts, unreadable, readable(annotations, root, unreadable)), facts


def leave_masks(files: list[Path], annotations: Annotations | None) -> list[Path]:
    """Masks and crops of CBIS-DDSM say that they are mammograms: their folders are known from the tables."""
    lesions = [lesion for image in annotations.images for lesion in image.lesions] if annotations else []
    folders = {lesion.mask_folder for lesion in lesions}
    return [path for path in files if folders.isdisjoint(path.parents)]


def readable(annotations: Annotations | None, root: Path, unreadable: list[Refused]) -> Annotations | None:
    """Annotations of the images that can be read: no others count."""
    if annotations is None:
        return None
    lost = {root / one.name for one in unreadable}
    return replace(annotations, images=tuple(image for image in annotations.images if image.path not in lost))


def _decoder_died(path: Path, root: Path) -> Refused:
    return refuse(str(path.relative_to(root)), BadPixels("the decoder crashed or ran out of memory"))


def summarise(
    root: Path, facts: Sequence[FileFacts], unreadable: list[Refused], annotations: Annotations | None
) -> Report:
    """Findings of all files → one report."""
    counts: Counts = {table: _count(entry for one in facts for entry in one.groups[table]) for table in TABLES}
    if annotations is not None:
        counts = {"class": class_counts(annotations), "split": split_counts(annotations), **counts}
    duplicates = find_duplicates(facts)
    identity = identity_findings(facts)
    wrong_side = [one.name for one in facts if not one.side_fits]
    refused = list(annotations.refused) if annotations else []
    warnings = [
        *_some(len(unreadable), "files that cannot be read"),
        *_some(len(duplicates), "groups of files with the same pixels"),
        *_some(len(wrong_side), "files with the chest wall on another side than laterality or orientation say"),
        *_some(sum(bool(one.identity.tags) for one in facts), "files with identifying tags still filled"),
        *_some(identity.get("BurnedInAnnotation: YES", 0), "files that say that names are burned in"),
        *_some(len(refused), "refused rows of the annotation tables"),
        *mixed_intents(counts["intent"]),
        *_crossing(root, duplicates, annotations),
        *_missing_classes(counts.get("class")),
    ]
    return Report(
        files=len(facts) + len(unreadable),
        usable=len(facts),
        counts=counts,
        histograms=histograms_by_vendor(facts),
        duplicates=duplicates,
        wrong_side=wrong_side,
        identity=identity,
        unreadable=unreadable,
        refused_rows=refused,
        warnings=warnings,
        problems=find_problems(facts, annotations),
    )


def _count(entries: Iterable[str]) -> dict[str, int]:
    return dict(Counter(entries).most_common())


def _some(number: int, what: str) -> list[str]:
    return [f"{what}: {number}"] if number else []


def class_counts(annotations: Annotations) -> dict[str, int]:
    """Lesions of each class; images without any count as background."""
    found = Counter(CLASSES[lesion.label] for image in annotations.images for lesion in image.lesions)
    found["background"] = sum(not image.lesions for image in annotations.images)
    return {name: found[name] for name in CLASSES}


def split_counts(annotations: Annotations) -> dict[str, int]:
    """Patients in each split."""
    patients = {image.patient: image.split for image in annotations.images}
    return _count(patients.values())


def find_duplicates(facts: Sequence[FileFacts]) -> list[list[str]]:
    """Groups of files with the same pixels, whatever their headers say."""
    groups = defaultdict(list)
    for one in facts:
        groups[one.content].append(one.name)
    return [names for names in groups.values() if len(names) > 1]


def identity_findings(facts: Sequence[FileFacts]) -> dict[str, int]:
    """Each finding about identity, with the number of files; tags are named, values are not there."""
    found: Counter[str] = Counter()
    for one in facts:
        found.update(f"filled: {tag}" for tag in one.identity.tags)
        found[f"BurnedInAnnotation: {one.identity.burned_in or 'not stated'}"] += 1
        found["PatientIdentityRemoved: " + ("YES" if one.identity.said_removed else "not YES")] += 1
        found["private tags"] += one.identity.private_tags > 0
        found["UID in the file's path"] += one.identity.uid_in_name
    return {finding: number for finding, number in found.most_common() if number}


def histograms_by_vendor(facts: Sequence[FileFacts]) -> dict[str, list[int]]:
    """Sum of the tissue histograms of each vendor."""
    sums: dict[str, NDArray[np.int64]] = {}
    for one in facts:
        vendor = one.groups["vendor"][0]
        sums[vendor] = sums.get(vendor, np.zeros(BINS, np.int64)) + np.array(one.histogram, np.int64)
    return {vendor: total.tolist() for vendor, total in sums.items()}


def mixed_intents(intents: Iterable[str]) -> list[str]:
    """A warning where images for processing and for presentation come together (PS3.3 C.8.11.7)."""
    mixed = len(set(intents) - {"not stated"}) > 1
    return ["images for processing and for presentation are mixed: train on one kind"] if mixed else []


def _crossing(root: Path, duplicates: list[list[str]], annotations: Annotations | None) -> list[str]:
    """The same pixels in two splits: the test would know its answers."""
    if annotations is None:
        return []
    splits = {image.path.resolve(): image.split for image in annotations.images}
    found = [{splits.get((root / name).resolve()) for name in names} - {None} for names in duplicates]
    return _some(sum(len(group) > 1 for group in found), "groups of the same pixels that cross a split")


def _missing_classes(classes: dict[str, int] | None) -> list[str]:
    missing = [name for name, number in (classes or {}).items() if not number and name != "background"]
    return [f"no lesion of class {', '.join(missing)}"] if missing else []


def find_problems(facts: Sequence[FileFacts], annotations: Annotations | None) -> list[str]:
    """Reasons why nothing can be trained."""
    if not facts:
        return ["no readable mammogram: see the reasons of the unreadable files"]
    if annotations is not None and not any(image.lesions for image in annotations.images):
        return ["no usable lesion in the annotation tables: see the refused rows"]
    return []
