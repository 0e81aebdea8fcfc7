"""Annotation tables (CBIS-DDSM, or one CSV of boxes) → images with lesions, patient and split."""

import csv
import hashlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from mammo.dicom import read_dataset, typed_errors
from mammo.errors import BadAnnotation
from mammofed.errors import BadData

log = logging.getLogger(__name__)

CLASSES = ("background", "mass_benign", "mass_malignant", "calc_benign", "calc_malignant")
KINDS = {"mass": "mass", "calc": "calc", "calcification": "calc"}
PATHOLOGIES = {"BENIGN": "benign", "BENIGN_WITHOUT_CALLBACK": "benign", "MALIGNANT": "malignant"}
NORMAL = ("", "normal", "background")  # kinds of a row that only names an image without lesions
SPLITS = ("train", "val", "test")
TEST_SHARE, VAL_SHARE = 0.2, 0.1
CBIS_COLUMNS = {"patient_id", "abnormality_id", "abnormality_type", "pathology", "image_file_path"}
CBIS_COLUMNS |= {"roi_mask_file_path"}
BOX_COLUMNS = {"path", "lesion_id", "kind", "pathology", "x", "y", "width", "height"}

Row = dict[str, str]


@dataclass(frozen=True)
class Box:
    """Rectangle in pixels of the image as stored: left, top, width, height."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class Lesion:
    """One region of interest: a box, or a folder that holds its mask."""

    lesion_id: str
    label: int  # index in CLASSES
    box: Box | None = None
    mask_folder: Path | None = None


@dataclass(frozen=True)
class AnnotatedImage:
    """One image file with its lesions (none: a normal image)."""

    name: str  # as the table has it: the same wherever the folder stands
    path: Path
    patient: str
    split: str
    lesions: tuple[Lesion, ...]
    view: str = ""  # what is seen: files of one view show the same breast, and the same lesions
    avoided: tuple[Lesion, ...] = ()  # of other files of the view: neither lesion nor background of this one
    unlocated: bool = False  # a row about this view was refused: a lesion lies nobody knows where


@dataclass(frozen=True)
class Refused:
    """What could not be used, and why; the rest goes on."""

    name: str
    error: str  # name of the error type
    reason: str


@dataclass(frozen=True)
class Annotations:
    """All usable images of some tables, and the rows that were refused."""

    images: tuple[AnnotatedImage, ...]
    refused: tuple[Refused, ...]


def refuse(name: str, error: Exception, path: Path | None = None) -> Refused:
    """Record an error of ours beside the name of what it stopped; the path need not be told twice."""
    return Refused(name, type(error).__name__, str(error).removeprefix(f"{path}: "))


def split_of(patient: str) -> str:
    """Split of a patient from a hash of its name alone: no added file, image or patient can move another."""
    digest = hashlib.sha256(f"split:{patient}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    return "test" if place < TEST_SHARE else "val" if place < TEST_SHARE + VAL_SHARE else "train"


def label_of(kind: str, pathology: str) -> int:
    """Class of a lesion, by its kind and pathology as the tables spell them."""
    try:
        return CLASSES.index(f"{KINDS[kind.lower()]}_{PATHOLOGIES[pathology.upper().replace(' ', '_')]}")
    except KeyError as error:
        known = f"mass or calc, and {', '.join(PATHOLOGIES)}"
        raise BadAnnotation(f"kind {kind!r} with pathology {pathology!r}: {known} are known") from error


def find_tables(root: Path) -> list[Path]:
    """Annotation tables that lie in the folder itself; other CSV files (a download's own list) are left."""
    found = sorted(root.glob("*.csv")) if root.is_dir() else []
    return [table for table in found if _is_table(table)]


def _is_table(table: Path) -> bool:
    """Whether the columns are those of an annotation table, whatever the rest of the file is written in."""
    try:
        with table.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
            first = [_row(row) for row in islice(csv.DictReader(lines), 1)]
    except (OSError, csv.Error) as error:
        log.warning("%s is left, it cannot be read as CSV: %s", table, error)
        return False
    return _row_reader(first) is not None


def read_annotations(root: Path, tables: Iterable[Path]) -> Annotations:
    """Read tables of either kind, told by their columns; paths in them start at the root folder."""
    images: dict[str, AnnotatedImage] = {}
    splits: dict[str, str] = {}  # of each patient
    refused: list[Refused] = []
    unlocated: set[str] = set()  # views with a refused row
    for table in tables:
        rows = read_table(table)
        read = _row_reader(rows)
        if read is None:
            needed = ", ".join(sorted(BOX_COLUMNS))
            raise BadAnnotation(f"{table}: neither a CBIS-DDSM case list nor a table with columns {needed}")
        for number, row in enumerate(rows, start=2):
            try:
                add(images, splits, read(root, row))
            except BadData as error:
                refused.append(refuse(f"{table.name} row {number}", error))
                unlocated.add(view_of(row))
    return Annotations(tuple(know_each_other(images.values(), unlocated)), tuple(refused))


def _row_reader(rows: list[Row]) -> Callable[[Path, Row], AnnotatedImage] | None:
    """What reads the rows of a table with these columns."""
    columns = set(rows[0]) if rows else set()
    return _cbis_image if columns >= CBIS_COLUMNS else _boxed_image if columns >= BOX_COLUMNS else None


def view_of(row: Row) -> str:
    """What a row's image shows: P_00001_LEFT_CC of CBIS-DDSM, whose masses and calcifications are files apart."""
    return row["path"] if "path" in row else row["image_file_path"].split("/")[0].partition("_")[2]


def know_each_other(images: Collection[AnnotatedImage], unlocated: Set[str]) -> Iterator[AnnotatedImage]:
    """Images with the lesions that other files of their view have, and whether one cannot be located."""
    by_view: defaultdict[str, list[AnnotatedImage]] = defaultdict(list)
    for image in images:
        by_view[image.view].append(image)
    for image in images:
        others = [other for other in by_view[image.view] if other is not image]
        avoided = tuple(lesion for other in others for lesion in other.lesions)
        yield replace(image, avoided=avoided, unlocated=image.view in unlocated)


def read_table(table: Path) -> list[Row]:
    """Rows of a CSV with names and cells cleaned: `breast density` is `breast_density`, no newlines."""
    try:
        with table.open(newline="", encoding="utf-8-sig") as lines:
            return [_row(row) for row in csv.DictReader(lines)]
    except OSError as error:
        raise BadAnnotation(f"no annotation table {table}: {error.strerror}; name another") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadAnnotation(f"{table}: cannot be read as CSV ({error}): save it as UTF-8 CSV") from error


def _row(cells: Mapping[str, str | None]) -> Row:
    return {_column(name): (cell or "").strip() for name, cell in cells.items() if isinstance(name, str)}


def _column(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def add(images: dict[str, AnnotatedImage], splits: dict[str, str], image: AnnotatedImage) -> None:
    """Join lesions of the same image; refuse a second patient or a split that its patient is not in."""
    split = splits.setdefault(image.patient, image.split)
    if split != image.split:
        raise BadAnnotation(f"split {image.split!r}, but the same patient is in {split!r}: choose one")
    known = images.setdefault(image.name, image)
    if known.patient != image.patient:
        raise BadAnnotation("the same image under two patients: correct the table")
    if known is not image:
        images[image.name] = replace(known, lesions=(*known.lesions, *image.lesions))


def _cbis_image(root: Path, row: Row) -> AnnotatedImage:
    """One row of a CBIS-DDSM case list; its own train/test files are ignored, since patients cross them."""
    label = label_of(row["abnormality_type"], row["pathology"])
    path = _cbis_file(root, row["image_file_path"])
    mask_folder = _cbis_folder(root, row["roi_mask_file_path"])
    lesion = Lesion(mask_folder.name, label, mask_folder=mask_folder)
    patient = row["patient_id"]
    name = row["image_file_path"].split("/")[0]
    return AnnotatedImage(name, path, patient, split_of(patient), (lesion,), view_of(row))


def _cbis_folder(root: Path, cell: str) -> Path:
    """Series folder of a path cell; the archive's own download puts all of them in CBIS-DDSM/."""
    top = cell.split("/")[0]
    for base in (root, root / "CBIS-DDSM"):
        if top and (base / top).is_dir():
            return base / top
    raise BadAnnotation(f"no folder {top!r} in {root}: download it, or remove the row")


def _cbis_file(root: Path, cell: str) -> Path:
    """The full image: where the cell says, else the only file of its folder (downloads rename levels)."""
    folder = _cbis_folder(root, cell)
    told = folder.parent / cell
    if told.is_file():
        return told
    files = sorted(folder.rglob("*.dcm"))
    if len(files) != 1:
        raise BadAnnotation(f"{len(files)} DICOM files in {folder}: one full mammogram is needed")
    return files[0]


def _boxed_image(root: Path, row: Row) -> AnnotatedImage:
    """One row of `path, lesion_id, kind, pathology, x, y, width, height[, patient, split]`."""
    path = root / row["path"]
    if not row["path"] or not path.is_file():
        raise BadAnnotation(f"no file {row['path']!r} in {root}: correct the path, or remove the row")
    patient = row.get("patient") or patient_of(path)
    split = row.get("split", "").lower() or split_of(patient)
    if split not in SPLITS:
        raise BadAnnotation(f"split {split!r}: one of {', '.join(SPLITS)} is needed, or none")
    normal = row["kind"].lower() in NORMAL
    lesions = () if normal else (Lesion(row["lesion_id"], label_of(row["kind"], row["pathology"]), _box(row)),)
    return AnnotatedImage(row["path"], path, patient, split, lesions, view_of(row))


def _box(row: Row) -> Box:
    try:
        x, y, width, height = (round(float(row[name])) for name in ("x", "y", "width", "height"))
    except (ValueError, OverflowError) as error:
        raise BadAnnotation("x, y, width and height must be numbers of pixels: correct the row") from error
    if width < 1 or height < 1:
        raise BadAnnotation(f"box of {width} × {height} pixels: at least 1 × 1 is needed")
    return Box(x, y, width, height)


def patient_of(path: Path) -> str:
    """PatientID of the header: without it no split can keep a patient together."""
    with typed_errors(path):
        patient = str(read_dataset(path, pixels=False).get("PatientID") or "").strip()
    if not patient:
        raise BadAnnotation(f"no PatientID in {path.name}: add a `patient` column to the table")
    return patient
