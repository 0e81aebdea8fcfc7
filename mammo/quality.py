"""Folder of DICOM files (and annotation tables) → a report: counts, findings, whether it can train."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mammo.annotations import CLASSES, AnnotatedImage, Annotations, Lesion, Refused
from mammo.deid import NOTICE, Identity
from mammo.examine import BINS, TABLES, FileFacts, Unusable, Wanted, examine_all, find_files

Counts = dict[str, dict[str, int]]
VERDICTS = ("This data can be used.", "It can be used, with warnings.", "Cannot train on this data.")
UNANNOTATED = "It can be read, but no patches can be cut before an annotation table is there."


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
    unit: str = "files"  # what is counted; of a store: patches

    @property
    def exit_code(self) -> int:
        """0: fine, 1: warnings, 2: cannot train."""
        return 2 if self.problems else 1 if self.warnings else 0

    @property
    def verdict(self) -> str:
        """What the exit code means; only an annotation table tells the classes of whole mammograms."""
        return VERDICTS[self.exit_code] if self.problems or "class" in self.counts else UNANNOTATED


def inspect_folder(
    root: Path,
    annotations: Annotations | None,
    workers: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Report, list[FileFacts]]:
    """Examine every file over the cores, then sum up."""
    facts, unusable = examine_all(wanted_files(root, annotations), root, workers, progress)
    return summarise(root, facts, unusable, readable(annotations, root, facts)), facts


def wanted_files(root: Path, annotations: Annotations | None) -> list[Wanted]:
    """Every file of the folder but masks, and every file that a table names, with the lesions placed in it."""
    files = {path.resolve(): path for path in leave_masks(find_files(root), annotations)}
    lesions: defaultdict[Path, list[Lesion]] = defaultdict(list)
    for image in annotations.images if annotations else ():
        files.setdefault(image.path.resolve(), image.path)
        lesions[image.path.resolve()] += image.lesions
    return [(path, tuple(lesions.get(place, ()))) for place, path in files.items()]


def leave_masks(files: list[Path], annotations: Annotations | None) -> list[Path]:
    """Masks and crops of CBIS-DDSM say that they are mammograms: their folders are known from the tables."""
    lesions = [lesion for image in annotations.images for lesion in image.lesions] if annotations else []
    folders = {lesion.mask_folder for lesion in lesions}
    return [path for path in files if folders.isdisjoint(path.parents)]


def readable(annotations: Annotations | None, root: Path, facts: Sequence[FileFacts]) -> Annotations | None:
    """Annotations of the images that were read, with the lesions that were located in them: no others count."""
    if annotations is None:
        return None
    read = {(root / one.name if root.is_dir() else root).resolve() for one in facts}
    lost = {lesion for one in facts for lesion, _ in one.lost}
    images = tuple(_located(image, lost) for image in annotations.images if image.path.resolve() in read)
    reasons = (reason for one in facts for _, reason in one.lost)
    return Annotations(images, (*annotations.refused, *reasons))


def _located(image: AnnotatedImage, lost: set[Lesion]) -> AnnotatedImage:
    unlocated = image.unlocated or not lost.isdisjoint({*image.lesions, *image.avoided})
    return replace(image, lesions=tuple(one for one in image.lesions if one not in lost), unlocated=unlocated)


def summarise(
    root: Path, facts: Sequence[FileFacts], unusable: Sequence[Unusable], annotations: Annotations | None
) -> Report:
    """Findings of all files → one report."""
    counts = count_groups(facts)
    if annotations is not None:
        counts = {"class": class_counts(annotations), "split": split_counts(annotations), **counts}
    duplicates = find_duplicates({one.name: one.content for one in facts})
    refused = list(annotations.refused) if annotations else []
    no_background = sum(image.unlocated for image in annotations.images) if annotations else 0
    warnings = [
        *some(len(unusable), "files that cannot be read"),
        *some(len(duplicates), "groups of files with the same pixels"),
        *header_warnings(facts, unusable),
        *([] if annotations else ["no annotation table: nothing says where lesions are; name one with --csv"]),
        *some(len(refused), "refused rows or lesions of the annotation tables"),
        *some(no_background, "images that give no background, since a lesion in them cannot be located"),
        *_crossing(root, duplicates, annotations),
        *_missing_classes(counts.get("class")),
    ]
    return Report(
        files=len(facts) + len(unusable),
        usable=len(facts),
        counts=counts,
        histograms=histograms_by_vendor(facts),
        duplicates=duplicates,
        wrong_side=wrong_sides(facts),
        identity=identity_findings(facts, unusable),
        unreadable=[one.refused for one in unusable],
        refused_rows=refused,
        warnings=warnings,
        problems=find_problems(facts, annotations),
    )


def count_groups(facts: Sequence[FileFacts]) -> Counts:
    """Files by vendor, view and the rest of TABLES."""
    return {table: _count(entry for one in facts for entry in one.groups[table]) for table in TABLES}


def wrong_sides(facts: Sequence[FileFacts]) -> list[str]:
    """Files whose laterality, orientation and image contradict each other."""
    return [one.name for one in facts if not one.side_fits]


def header_warnings(facts: Sequence[FileFacts], unusable: Sequence[Unusable]) -> list[str]:
    """Warnings about sides, identity and intent, of files that are used or not."""
    found = identities(facts, unusable)
    return [
        *some(len(wrong_sides(facts)), "files whose laterality, orientation and image contradict each other"),
        *some(sum(bool(one.tags) for one in found), "files with identifying tags still filled"),
        *some(sum(one.burned_in == "YES" for one in found), "files that say that names are burned in"),
        *mixed_intents(one.groups["intent"][0] for one in facts),
    ]


def _count(entries: Iterable[str]) -> dict[str, int]:
    return dict(Counter(entries).most_common())


def some(number: int, what: str) -> list[str]:
    """A warning that counts something, none where there is nothing."""
    return [f"{what}: {number}"] if number else []


def class_counts(annotations: Annotations) -> dict[str, int]:
    """Lesions of each class; images that have none count as background."""
    found = Counter(CLASSES[lesion.label] for image in annotations.images for lesion in image.lesions)
    found["background"] = sum(not (image.lesions or image.unlocated) for image in annotations.images)
    return {name: found[name] for name in CLASSES}


def split_counts(annotations: Annotations) -> dict[str, int]:
    """Patients in each split."""
    patients = {image.patient: image.split for image in annotations.images}
    return _count(patients.values())


def find_duplicates(content: Mapping[str, str]) -> list[list[str]]:
    """Groups of files (name → digest of the pixels) with the same pixels, whatever their headers say."""
    groups = defaultdict(list)
    for name, digest in content.items():
        groups[digest].append(name)
    return [names for names in groups.values() if len(names) > 1]


def identities(facts: Sequence[FileFacts], unusable: Sequence[Unusable]) -> list[Identity]:
    """What was found in every header that can be read, that of a dose report or a CT too."""
    return [one.identity for one in facts] + [one.identity for one in unusable if one.identity is not None]


def identity_findings(facts: Sequence[FileFacts], unusable: Sequence[Unusable]) -> dict[str, int]:
    """Each finding about identity, with the number of files; tags are named, values are not there."""
    found: Counter[str] = Counter()
    for one in identities(facts, unusable):
        found.update(f"filled: {tag}" for tag in one.tags)
        found.update(f"filled, with a dummy as PatientIdentityRemoved says: {tag}" for tag in one.dummies)
        found[f"BurnedInAnnotation: {one.burned_in or 'not stated'}"] += 1
        found["PatientIdentityRemoved: " + ("YES" if one.said_removed else "not YES")] += 1
        found["private tags"] += one.private_tags > 0
        found["UID in the file's path"] += one.uid_in_name
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
    return some(sum(len(group) > 1 for group in found), "groups of the same pixels that cross a split")


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
