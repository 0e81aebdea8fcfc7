"""Patch store or folder of images by class → the same report, and a gallery of patches by class."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mammo import store
from mammo.annotations import CLASSES, AnnotatedImage, Annotations, Refused, refuse
from mammo.dicom import grey, load
from mammo.examine import BINS, FileFacts, Unusable, Wanted, examine_all
from mammo.extract import Extraction, extract
from mammo.folder import is_dicom, list_pictures, read_picture
from mammo.lut import LEVELS
from mammo.patches import Sampling, resize
from mammo.quality import (
    Counts,
    Report,
    count_groups,
    find_duplicates,
    header_warnings,
    identity_findings,
    mixed_intents,
    readable,
    wrong_sides,
)
from mammofed.errors import BadData

SHOWN = 6  # pictures of each class in a gallery
RECORDED = ("split", "style", "vendor", "intent")  # of the manifest, counted in a report
THUMBNAIL = 160  # pixels along the longer side of a whole image
SAMPLED = 200  # patches of each class in a histogram

Pictures = list[NDArray[np.float32]]


def survey_folder(
    root: Path, workers: int = 1, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Report, dict[str, Pictures]]:
    """Read every picture of a folder by class; DICOM files are examined as those of any other folder."""
    paths, classes = list_pictures(root)
    wanted: list[Wanted] = [(path, ()) for path in paths if is_dicom(path)]
    facts, unusable = examine_all(wanted, root, workers, progress)
    unreadable = [one.refused for one in unusable]
    content = {one.name: one.content for one in facts}  # of each readable picture
    read: defaultdict[str, Pictures] = defaultdict(list)
    for path in paths:
        name, sampled = str(path.relative_to(root)), read[path.parent.name]
        if is_dicom(path) and (name not in content or len(sampled) >= SAMPLED):
            continue
        try:
            picture = read_picture(path)
        except BadData as error:
            unreadable.append(refuse(name, error, path))
            continue
        if not is_dicom(path):
            content[name] = hashlib.sha256(repr(picture.shape).encode() + picture.tobytes()).hexdigest()
        sampled += [picture] if len(sampled) < SAMPLED else []
    report = _report(_class_counts(content, classes), read, unreadable, find_duplicates(content), len(paths))
    report = _with_headers(report, facts, unusable)
    return report, {name: pictures[:SHOWN] for name, pictures in read.items() if pictures}


def _class_counts(names: Iterable[str], classes: Sequence[str]) -> Counts:
    found = Counter(Path(name).parent.name for name in names)
    return {"class": {name: found[name] for name in classes}}


def _with_headers(report: Report, facts: Sequence[FileFacts], unusable: Sequence[Unusable]) -> Report:
    """The report with what the headers of DICOM pictures say of vendor, side and identity."""
    return replace(
        report,
        counts={**report.counts, **(count_groups(facts) if facts else {})},
        wrong_side=wrong_sides(facts),
        identity=identity_findings(facts, unusable),
        warnings=[*report.warnings, *header_warnings(facts, unusable)],
    )


def survey_store(folder: Path) -> tuple[Report, dict[str, Pictures]]:
    """Check every checksum of a store, and count its manifest."""
    store.verify(folder)
    opened = store.open_store(folder)
    rows = opened.rows
    classes = Counter(row["class"] for row in rows)
    counts = {
        "class": {name: classes[name] for name in opened.classes},
        **{name: dict(Counter(row[name] or "not stated" for row in rows).most_common()) for name in RECORDED},
    }
    read = {}
    for label, name in enumerate(opened.classes):
        places = np.flatnonzero(opened.labels == label)
        spread = places[:: max(1, len(places) // SAMPLED)][:SAMPLED]
        read[name] = [picture[0] for picture in opened.read(spread)]
    report = _report(counts, read, store.refused_sources(folder), [], len(rows))
    report = replace(report, warnings=[*report.warnings, *mixed_intents(counts["intent"])])
    shown = {name: pictures[:: max(1, len(pictures) // SHOWN)][:SHOWN] for name, pictures in read.items()}
    return report, {name: pictures for name, pictures in shown.items() if pictures}


def _report(
    counts: Counts,
    read: dict[str, Pictures],
    refused: list[Refused],
    duplicates: list[list[str]],
    files: int,
) -> Report:
    filled = [name for name, number in counts["class"].items() if number]
    missing = [name for name, number in counts["class"].items() if not number]
    warnings = [f"no patch of class {', '.join(missing)}"] if missing else []
    warnings += [f"refused sources: {len(refused)}"] if refused else []
    warnings += [f"groups of the same pictures: {len(duplicates)}"] if duplicates else []
    levels = {name: np.concatenate([one.ravel() for one in read[name]]) for name in filled if read.get(name)}
    return Report(
        files=files,
        usable=sum(counts["class"].values()),
        counts=counts,
        histograms={name: np.histogram(v, BINS, (0, 1))[0].tolist() for name, v in levels.items()},
        duplicates=duplicates,
        wrong_side=[],
        identity={},
        unreadable=refused,
        refused_rows=[],
        warnings=warnings,
        problems=[] if len(filled) > 1 else [f"patches of {len(filled)} class: at least two are needed"],
        unit="patches",
    )


def gallery_of(root: Path, facts: list[FileFacts], annotations: Annotations | None) -> dict[str, Pictures]:
    """Patches by class from the first images of each class, and some whole images by view; none unread before."""
    shown: dict[str, Pictures] = {}
    known = readable(annotations, root, facts)
    for name in CLASSES if known else ():
        patches = _patches_of(name, known.images if known else ())
        shown |= {name: patches} if patches else {}
    for one in facts:
        images = shown.setdefault(f"whole images, view {one.groups['view'][0]}", [])
        if len(images) < SHOWN:
            images.append(_thumbnail(root / one.name if root.is_dir() else root))
    return shown


def _thumbnail(path: Path) -> NDArray[np.float32]:
    picture = grey(load(path))
    step = max(1, max(picture.shape) // THUMBNAIL)
    return resize(picture, (max(1, picture.shape[0] // step), max(1, picture.shape[1] // step)))


def _patches_of(name: str, images: tuple[AnnotatedImage, ...]) -> Pictures:
    """Up to SHOWN patches of one class, two from an image."""
    label, found = CLASSES.index(name), Pictures()
    for image in images:
        if label and all(lesion.label != label for lesion in image.lesions):
            continue
        try:
            patches, rows, _ = extract(image, Extraction(Sampling(per_lesion=2)))
        except BadData:  # the report lists it already
            continue
        own = [patch for patch, row in zip(patches, rows, strict=True) if row["class"] == name]
        found += [(patch / np.float32(LEVELS)).astype(np.float32) for patch in own[:2]]
        if len(found) >= SHOWN:
            break
    return found[:SHOWN]
