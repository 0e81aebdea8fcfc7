"""Number of patients and a seed → a folder of synthetic DICOM mammograms and their annotations.csv.

Four vendors differ in what the mammo pipeline has to master: VOI LUT sequences and windows, MONOCHROME1,
pixel padding, spacing tags and transfer syntaxes. No header carries an identity (PS3.15 annex E).
"""

import csv
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, FileDataset
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    UID,
    DigitalMammographyXRayImageStorageForPresentation,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
)

from mammo.style import Style, sigmoid
from mammofed.errors import BadSetting
from mammofed.files import make_folder, writing
from synthetic.lesions import CLASSES
from synthetic.mammograms import Box, Image, View, draw_mammogram

COLUMNS = ("path", "lesion_id", "kind", "pathology", "x", "y", "width", "height", "patient", "split")
TOP = 4095  # of 12 bits
LOW, ENTRIES = 625, 3447  # of the LUTs: first mapped value and length, as of a real Senographe file
EMPTY = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "ReferringPhysicianName"),
    *("StudyDate", "StudyTime", "StudyID", "AccessionNumber", "ContentDate", "ContentTime"),
)
LUTS = {  # explanation → the curve of its table
    "NORMAL": Style("sigmoid", centre=0.36, width=0.8),
    "HARDER": Style("sigmoid", centre=0.36, width=0.5),
    "SOFTER": Style("sigmoid", centre=0.36, width=1.3),
}


@dataclass(frozen=True)
class Vendor:
    """What a vendor writes."""

    name: str
    photometric: Literal["MONOCHROME1", "MONOCHROME2"]
    voi: Literal["lut", "sigmoid", "linear"]
    syntax: UID
    padding: bool  # whether air is declared by Pixel Padding Value
    calibrated: bool  # whether Pixel Spacing stands beside Imager Pixel Spacing


VENDORS = (
    Vendor("SYNTHETIC A", "MONOCHROME2", "lut", ExplicitVRLittleEndian, padding=False, calibrated=False),
    Vendor("SYNTHETIC B", "MONOCHROME2", "sigmoid", JPEG2000Lossless, padding=True, calibrated=True),
    Vendor("SYNTHETIC C", "MONOCHROME1", "linear", RLELossless, padding=True, calibrated=False),
    Vendor("SYNTHETIC D", "MONOCHROME1", "lut", JPEGLSLossless, padding=False, calibrated=True),
)


@dataclass(frozen=True)
class StudySettings:
    """What is written; each patient has a CC and an MLO view of one breast with one lesion, or none."""

    patients: int = 20
    spacing: float = 0.2  # mm a pixel
    test: float = 0.25  # share of patients in the test split

    def __post_init__(self) -> None:
        if self.patients < 1 or not 0 <= self.test < 1:
            raise BadSetting(f"{self.patients} patients, test share {self.test}: use at least 1, and 0 to below 1")
        View(spacing=self.spacing)


def write_studies(settings: StudySettings, out: Path, seed: int) -> Iterator[Path]:
    """Write the files one by one, yielding each path, and annotations.csv with a row a lesion at the end."""
    make_folder(out)
    if any(out.iterdir()):
        raise BadSetting(f"folder {out} is not empty: name a new one")
    tested = held_out(settings, seed)
    rows: list[tuple[str | int, ...]] = []
    for number in range(settings.patients):
        patient, split = f"patient-{number + 1:03d}", "test" if number in tested else "train"
        for name, dataset, boxes in draw_study(number, settings, seed):
            path = out / patient / name
            make_folder(path.parent)
            with writing(path):
                dataset.save_as(path, enforce_file_format=True)
            rows += [_row(f"{patient}/{name}", lesion, patient, split) for lesion in boxes]
            yield path
    table = out / "annotations.csv"
    with writing(table), table.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])


def held_out(settings: StudySettings, seed: int) -> set[int]:
    """Choose the numbers of the test split's patients at random, the classes in turn."""
    order = np.random.default_rng(seed).permutation(settings.patients)
    classes = _label(order)
    turn = [int((classes[:place] == classes[place]).sum()) for place in range(len(order))]
    chosen = order[np.argsort(turn, kind="stable")][: round(settings.test * settings.patients)]
    return set(chosen.tolist())


def draw_study(
    number: int, settings: StudySettings, seed: int
) -> Iterator[tuple[str, FileDataset, tuple[Box, ...]]]:
    """Draw a patient's views: file name, data set and lesions; twenty patients have each vendor and class."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    vendor, label = VENDORS[number % len(VENDORS)], int(_label(np.array(number)))
    side: Literal["L", "R"] = "L" if rng.random() < 0.5 else "R"
    for position in ("CC", "MLO"):
        view = View(position, side, spacing=settings.spacing)
        image, boxes = draw_mammogram(view, label, rng)
        uids = tuple(_uid(f"{seed}:{number}{part}") for part in ("", f":{position}:series", f":{position}"))
        yield f"{side}-{position}.dcm", mammogram_dataset(image, view, vendor, uids), boxes


def mammogram_dataset(image: Image, view: View, vendor: Vendor, uids: tuple[UID, ...]) -> FileDataset:
    """Return the mammogram as its vendor writes it (PS3.3 A.26 Digital Mammography X-Ray Image IOD)."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = DigitalMammographyXRayImageStorageForPresentation
    meta.MediaStorageSOPInstanceUID = uids[2]
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID, dataset.SOPInstanceUID = uids
    dataset.SOPClassUID = meta.MediaStorageSOPClassUID
    _describe_no_one(dataset)
    _describe_view(dataset, view, vendor)
    _describe_grey_levels(dataset, vendor)
    _store(dataset, _stored_values(image, vendor), vendor)
    return dataset


def _stored_values(image: Image, vendor: Vendor) -> NDArray[np.uint16]:
    """Return 12-bit values: tissue within the LUTs' range, air at the dark end."""
    values = np.where(image > 0, np.rint(LOW + image * (ENTRIES - 1)), 0).astype(np.uint16)
    return np.asarray(TOP - values if vendor.photometric == "MONOCHROME1" else values, dtype=np.uint16)


def _describe_no_one(dataset: Dataset) -> None:
    """Leave all that identifies a person empty, and say so (PS3.3 C.7.1.1, C.12.1)."""
    for keyword in EMPTY:
        setattr(dataset, keyword, "")
    dataset.PatientIdentityRemoved = "YES"
    dataset.DeidentificationMethod = "Synthetic image: there is no patient"
    dataset.BurnedInAnnotation = "NO"


def _describe_view(dataset: Dataset, view: View, vendor: Vendor) -> None:
    """Fill the series, equipment and mammography modules (PS3.3 C.8.11.7)."""
    dataset.Modality = "MG"
    dataset.PresentationIntentType = "FOR PRESENTATION"
    dataset.Manufacturer = vendor.name
    dataset.ManufacturerModelName = "mammofed synthetic"
    dataset.ImageType = ["DERIVED", "PRIMARY"]
    dataset.SeriesNumber = dataset.InstanceNumber = 1
    dataset.BodyPartExamined = dataset.OrganExposed = "BREAST"
    dataset.ViewPosition = view.position
    dataset.ImageLaterality = view.side
    dataset.PatientOrientation = [
        "A" if view.side == "L" else "P",
        view.side if view.position == "CC" else "F",
    ]
    dataset.AnatomicRegionSequence = [_code("76752008", "SCT", "Breast")]
    oblique = _code("399368009", "SCT", "medio-lateral oblique")
    dataset.ViewCodeSequence = [oblique if view.position == "MLO" else _code("399162004", "SCT", "cranio-caudal")]
    dataset.ViewCodeSequence[0].ViewModifierCodeSequence = []
    dataset.BreastImplantPresent = "NO"
    dataset.ImagerPixelSpacing = [view.spacing, view.spacing]
    dataset.EstimatedRadiographicMagnificationFactor = 1
    if vendor.calibrated:
        dataset.PixelSpacing = [view.spacing, view.spacing]
        dataset.PixelSpacingCalibrationType = "GEOMETRY"
    dataset.PositionerType = "MAMMOGRAPHIC"
    dataset.AcquisitionContextSequence = []


def _describe_grey_levels(dataset: Dataset, vendor: Vendor) -> None:
    """Fill the Modality, VOI and Presentation LUT modules (PS3.3 C.11.1, C.11.2, C.11.6)."""
    inverse = vendor.photometric == "MONOCHROME1"
    dataset.RescaleIntercept, dataset.RescaleSlope, dataset.RescaleType = 0, 1, "US"
    dataset.PresentationLUTShape = "INVERSE" if inverse else "IDENTITY"
    dataset.PixelIntensityRelationship = "LOG"
    dataset.PixelIntensityRelationshipSign = 1 if inverse else -1
    dataset.LossyImageCompression = "00"
    if vendor.padding:
        dataset.add_new("PixelPaddingValue", "US", TOP if inverse else 0)
    centres = [round(LOW + ENTRIES * style.centre) for style in LUTS.values()]
    if vendor.voi == "lut":
        dataset.VOILUTSequence = [_lut(name, style, inverse) for name, style in LUTS.items()]
    dataset.WindowCenter = [TOP - centre if inverse else centre for centre in centres]
    dataset.WindowWidth = [round(ENTRIES * style.width) for style in LUTS.values()]
    dataset.WindowCenterWidthExplanation = list(LUTS)
    dataset.VOILUTFunction = "LINEAR" if vendor.voi == "linear" else "SIGMOID"


def _lut(explanation: str, style: Style, inverse: bool) -> Dataset:
    """Return one item of the VOI LUT Sequence (PS3.3 C.11.2.1.1)."""
    curve = sigmoid(np.linspace(0, 1, ENTRIES, dtype=np.float32), style)
    curve = 1 - curve[::-1] if inverse else curve
    first = TOP - LOW - (ENTRIES - 1) if inverse else LOW
    item = Dataset()
    item.add_new("LUTDescriptor", "US", [ENTRIES, first, 12])
    item.LUTExplanation = explanation
    item.add_new("LUTData", "OW", np.rint(curve * TOP).astype("<u2").tobytes())
    return item


def _store(dataset: FileDataset, values: NDArray[np.uint16], vendor: Vendor) -> None:
    """Put the pixels in, in the vendor's transfer syntax (PS3.3 C.7.6.3, PS3.5 annex A)."""
    dataset.set_pixel_data(values, vendor.photometric, bits_stored=12, generate_instance_uid=False)
    if vendor.syntax == JPEGLSLossless:
        stream = imagecodecs.jpegls_encode(values)
        dataset.PixelData = encapsulate([bytes(stream)])
        dataset["PixelData"].VR = "OB"
        dataset["PixelData"].is_undefined_length = True
        dataset.file_meta.TransferSyntaxUID = JPEGLSLossless
    elif vendor.syntax != ExplicitVRLittleEndian:
        dataset.compress(vendor.syntax, generate_instance_uid=False)


def _label(number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class of patients by their numbers."""
    return (number + 1) % len(CLASSES)


def _row(path: str, box: Box, patient: str, split: str) -> tuple[str | int, ...]:
    kind, pathology = CLASSES[box.label].split("_")
    lesion = f"{path.removesuffix('.dcm').replace('/', '-')}-1"
    return (path, lesion, kind, pathology, box.x, box.y, box.width, box.height, patient, split)


def _code(value: str, scheme: str, meaning: str) -> Dataset:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, meaning
    return item


def _uid(name: str) -> UID:
    """Return a UID under 2.25 (PS3.5 B.2) from a name alone, so that a seed gives the same files."""
    return UID(f"2.25.{int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], 'big')}")
