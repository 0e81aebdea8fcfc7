"""Patch store or folder of images by class → the same report, and a gallery of patches by class."""

import hashlib
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mammo import store
from mammo.annotations import CLASSES, AnnotatedImage, Annotations, Refused, refuse
from mammo.dicom import grey, load
from mammo.extract import Extraction, extract
from mammo.folder import ImageFolder, open_folder, read_picture
from mammo.patches import Sampling, resize
from mammo.quality import BINS, FileFacts, Report, mixed_intents
from mammofed.errors import BadData

SHOWN = 6  # pictures of each class in a gallery
RECORDED = ("split", "style", "vendor", "intent")  # of the manifest, counted in a report
THUMBNAIL = 160  # pixels along the longer side of a whole image
SAMPLED = 200  # patches of each class in a histogram

Pictures = list[NDArray[np.float32]]


def survey_folder(root: Path) -> tuple[Report, dict[str, Pictures]]:
    """Read every picture of a folder by class."""
    source: ImageFolder = open_folder(root)
    unreadable: list[Refused] = []
    same: defaultdict[str, list[str]] = defaultdict(list)
    read: defaultdict[str, Pictures] = defaultdict(list)
    counts: Counter[str] = Counter()
    for path in source.paths:
        name = str(path.relative_to(root))
        try:
            picture = read_picture(path)
        except BadData as error:
            unreadable.append(refuse(name, error, path))
            continue
        same[hashlib.sha256(repr(picture.shape).encode() + picture.tobytes()).hexdigest()].append(name)
        counts[path.parent.name] += 1
        if len(read[path.parent.name]) < SAMPLED:
            read[path.parent.name].append(picture)
    duplicates = [names for names in same.values() if len(names) > 1]
    report = _report(
        {"class": {name: counts[name] for name in source.classes}},
        read,
        unreadable,
        duplicates,
        len(source.paths),
    )
    return report, {name: pictures[:SHOWN] for name, pictures in read.items()}


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
    return report, {name: pictures[:: max(1, len(pictures) // SHOWN)][:SHOWN] for name, pictures in read.items()}


def _report(
    counts: dict[str, dict[str, int]],
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
    )


def gallery_of(root: Path, facts: list[FileFacts], annotations: Annotations | None) -> dict[str, Pictures]:
    """Patches by class from the first images of each class, and some whole images by view."""
    shown: dict[str, Pictures] = {}
    for name in CLASSES if annotations else ():
        patches = _patches_of(name, annotations.images if annotations else ())
        shown |= {name: patches} if patches else {}
    for one in facts:
        images = shown.setdefault(f"whole images, view {one.groups['view'][0]}", [])
        if len(images) < SHOWN:
            images.append(_thumbnail(root / one.name if root.is_dir() else root))
    return shown


def _thumbnail(path: Path) -> NDArray[np.float32]:
    picture = grey(load(path))
    step = max(1, max(picture.shape) // THUMBNAIL)
    return resize(picture, (picture.shape[0] // step, picture.shape[1] // step))


def _patches_of(name: str, images: tuple[AnnotatedImage, ...]) -> Pictures:
    """Up to SHOWN patches of one class, two from an image."""
    label, found = CLASSES.index(name), Pictures()
    for image in images:
        if label and all(lesion.label != label for lesion in image.lesions):
            continue
        try:
            patches, rows = extract(image, Extraction(Sampling(per_lesion=2)))
        except BadData:  # the report lists it already
            continue
        own = [patch for patch, row in zip(patches, rows, strict=True) if row["class"] == name]
        found += [(patch / np.float32(store.LEVELS)).astype(np.float32) for patch in own[:2]]
        if len(found) >= SHOWN:
            break
    return found[:SHOWN]
