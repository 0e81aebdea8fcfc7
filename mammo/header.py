"""Dataset (and frame) → checked facts: dimensions, grey-scale pipeline, spacing, laterality, view, vendor."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset

from mammo.errors import BadLut, BadPixels, MissingTag, NoPixels, NotMammogram, TooLarge
from mammo.lut import Lut, Pipeline, Rescale, Window, apply_modality, stored_range

MAX_PIXELS = 2**26  # of one frame: 8192 × 8192; the largest film scans have 40 million
MAX_FRAMES = 1000
FUNCTIONS = ("LINEAR", "LINEAR_EXACT", "SIGMOID")


@dataclass(frozen=True)
class Spacing:
    """Millimetres between pixel centres, and the tag they come from (PS3.3 10.7.1.3)."""

    row_mm: float
    column_mm: float
    origin: Literal["PixelSpacing", "ImagerPixelSpacing", "ImagerPixelSpacing / magnification"]


def value_of(dataset: Dataset, keyword: str) -> Any:
    """Value of a tag as pydicom gives it, none where it is absent; one that it cannot parse is named."""
    try:
        return dataset.get(keyword)
    except Exception as error:  # arbitrary bytes, parsed only now
        raise MissingTag(
            f"{keyword} has a value that cannot be read: correct it, or export the file again"
        ) from error


def text(dataset: Dataset, keyword: str) -> str:
    """First value of a tag as short printable text, empty where it is absent."""
    value = value_of(dataset, keyword)
    if value is None or isinstance(value, bytes):
        return ""
    many = not isinstance(value, str) and hasattr(value, "__len__")
    first = (value[0] if len(value) else "") if many else value
    printable = "".join(c for c in str(first) if c.isprintable())  # it may reach a terminal or a page
    return printable.strip()[:64]


def integer(dataset: Dataset, keyword: str, least: int = 0) -> int:
    """Value of a tag that must be one whole number."""
    value = value_of(dataset, keyword)
    if not isinstance(value, int) or value < least:
        raise MissingTag(f"{keyword} is absent or not a number ≥ {least}: the file is incomplete, export it again")
    return int(value)


def numbers(dataset: Dataset, keyword: str) -> list[float]:
    """All values of a decimal tag, none where it is absent or empty."""
    value = value_of(dataset, keyword)
    if value is None or value == "":
        return []
    try:
        return [float(v) for v in ([value] if isinstance(value, (int, float, str)) else value)]
    except (TypeError, ValueError) as error:
        raise MissingTag(f"{keyword} is not a number: correct it, or export the file again") from error


def choose_frame(dataset: Dataset, frame: int | None) -> int:
    """Frame number from 1; an image of several frames is refused unless one is named."""
    frames = integer(dataset, "NumberOfFrames", 1) if "NumberOfFrames" in dataset else 1
    if frames > MAX_FRAMES:
        raise TooLarge(f"{frames} frames: at most {MAX_FRAMES} are read")
    if frame is None and frames > 1:
        raise NotMammogram(f"{frames} frames: a 2D image is needed, or name a frame from 1 to {frames}")
    if frame is not None and not 1 <= frame <= frames:
        raise NotMammogram(f"frame {frame} of {frames}: name a frame from 1 to {frames}")
    return frame or 1


def check_image(dataset: Dataset) -> None:
    """Refuse what is no grey-scale mammogram, and sizes that no mammogram has (PS3.3 C.7.6.3)."""
    modality = text(dataset, "Modality")
    if modality != "MG":
        raise NotMammogram(f"modality {modality!r}: MG is needed")
    photometric = text(dataset, "PhotometricInterpretation")
    if photometric not in ("MONOCHROME1", "MONOCHROME2") or integer(dataset, "SamplesPerPixel", 1) != 1:
        raise NotMammogram(f"photometric interpretation {photometric!r}: MONOCHROME1 or MONOCHROME2 is needed")
    pixels = dataset.get_item("PixelData", keep_deferred=True)
    if pixels is None or not (pixels.value or getattr(pixels, "length", 0)):
        raise NoPixels("no pixel data: a report or presentation state, or an incomplete export")
    rows, columns = integer(dataset, "Rows", 1), integer(dataset, "Columns", 1)
    if rows * columns > MAX_PIXELS:
        raise TooLarge(f"Rows × Columns is {rows} × {columns}: at most {MAX_PIXELS} pixels are read")
    check_bits(dataset)


def check_bits(dataset: Dataset) -> None:
    """Require words of 8 or 16 bits with the stored bits at their low end (PS3.5 8.1.1)."""
    allocated, stored = integer(dataset, "BitsAllocated", 1), integer(dataset, "BitsStored", 1)
    if allocated not in (8, 16) or stored > allocated:
        raise BadPixels(f"BitsAllocated {allocated}, BitsStored {stored}: 8 or 16, and no more stored, are read")
    high = dataset.get("HighBit", stored - 1)
    if high != stored - 1:
        raise BadPixels(f"HighBit {high} with BitsStored {stored}: {stored - 1} is needed")
    if integer(dataset, "PixelRepresentation") > 1:
        raise MissingTag("PixelRepresentation must be 0 (unsigned) or 1 (signed)")


def functional_group(dataset: Dataset, frame: int, sequence: str) -> Dataset:
    """The frame's own group, else the shared one, else the dataset itself (PS3.3 C.7.6.16)."""
    per_frame = dataset.get("PerFrameFunctionalGroupsSequence") or []
    shared = dataset.get("SharedFunctionalGroupsSequence") or []
    for groups in (per_frame[frame - 1 : frame], shared[:1]):
        for group in groups:
            items = group.get(sequence)
            if items:
                return cast(Dataset, items[0])
    return dataset


def read_pipeline(dataset: Dataset, frame: int) -> Pipeline:
    """Gather modality, VOI and presentation steps of the frame."""
    signed = integer(dataset, "PixelRepresentation") == 1
    modality = read_modality(functional_group(dataset, frame, "PixelValueTransformationSequence"), signed)
    first = Pipeline(integer(dataset, "BitsStored", 1), signed, modality)
    below_zero = apply_modality(np.array(stored_range(first), np.float64), modality).min() < 0
    inverted = (
        text(dataset, "PhotometricInterpretation") == "MONOCHROME1"
        or text(dataset, "PresentationLUTShape") == "INVERSE"
    )
    return replace(
        first,
        vois=read_vois(functional_group(dataset, frame, "FrameVOILUTSequence"), bool(below_zero)),
        inverted=inverted,
        padding=read_padding(dataset, signed),
    )


def read_modality(dataset: Dataset, signed: bool) -> Rescale | Lut:
    """Modality LUT sequence, else rescale slope and intercept, else the identity (PS3.3 C.11.1)."""
    items = dataset.get("ModalityLUTSequence")
    if items:
        return read_lut(items[0], "ModalityLUTType", signed)
    slope, intercept = (
        numbers(dataset, "RescaleSlope") or [1.0],
        numbers(dataset, "RescaleIntercept") or [0.0],
    )
    if not (math.isfinite(slope[0]) and math.isfinite(intercept[0])) or slope[0] == 0:
        raise BadLut(f"RescaleSlope {slope[0]}, RescaleIntercept {intercept[0]}: finite and not 0 is needed")
    return Rescale(slope[0], intercept[0])


def read_vois(dataset: Dataset, signed: bool) -> tuple[Lut | Window, ...]:
    """Every VOI LUT, then every window, in the order of the file (PS3.3 C.11.2)."""
    luts = [read_lut(item, "LUTExplanation", signed) for item in dataset.get("VOILUTSequence") or []]
    centres, widths = numbers(dataset, "WindowCenter"), numbers(dataset, "WindowWidth")
    if len(centres) != len(widths):
        raise BadLut(f"{len(centres)} window centres but {len(widths)} widths: one of each is needed")
    function = text(dataset, "VOILUTFunction") or "LINEAR"
    explained = dataset.get("WindowCenterWidthExplanation") or []
    names = [explained] if isinstance(explained, str) else [str(name) for name in explained]
    names += [""] * len(centres)
    windows = [read_window(*row, function) for row in zip(centres, widths, names, strict=False)]
    return (*luts, *windows)


def read_window(centre: float, width: float, explanation: str, function: str) -> Window:
    """Check one window: LINEAR needs a width ≥ 1, the others > 0 (PS3.3 C.11.2.1.2, C.11.2.1.3)."""
    if function not in FUNCTIONS:
        raise BadLut(f"VOILUTFunction {function!r}: one of {', '.join(FUNCTIONS)} is needed")
    enough = width >= 1 if function == "LINEAR" else width > 0
    if not (math.isfinite(centre) and math.isfinite(width) and enough):
        raise BadLut(f"window centre {centre}, width {width} cannot be used with {function}")
    return Window(centre, width, cast(Literal["LINEAR", "LINEAR_EXACT", "SIGMOID"], function), explanation.strip())


def read_lut(item: Dataset, name: str, signed: bool) -> Lut:
    """Check a LUT item: its descriptor must fit its data (PS3.3 C.11.1.1.1, C.11.2.1.1)."""
    descriptor = [int(v) for v in numbers(item, "LUTDescriptor")]
    if len(descriptor) != 3:
        raise BadLut(f"LUTDescriptor has {len(descriptor)} values: 3 are needed")
    entries, first, bits = descriptor[0] % 65536 or 65536, descriptor[1], descriptor[2]
    first = (first + 32768) % 65536 - 32768 if signed else first % 65536
    data = lut_data(item, entries)
    if not 8 <= bits <= 16 or len(data) != entries or int(data.max()) >= 2**bits:
        promise = f"LUTDescriptor promises {entries} entries of {bits} bits"
        raise BadLut(f"{promise}, LUTData has {len(data)} up to {data.max()}: export the file again")
    return Lut(first, bits, data, text(item, "LUTExplanation") or text(item, name))


def lut_data(item: Dataset, entries: int) -> NDArray[np.uint16]:
    """Entries of LUTData, given as numbers, as little-endian words, or packed in bytes."""
    value = item.get("LUTData")
    if value is None or value == b"":
        raise BadLut("LUT item without LUTData: export the file again")
    if not isinstance(value, bytes):
        return np.atleast_1d(np.asarray(value)).astype(np.int64).astype(np.uint16)
    if len(value) in (entries, entries + 1) and entries > 1:
        return np.frombuffer(value[:entries], np.uint8).astype(np.uint16)
    word = "<u2" if item.original_encoding[1] is not False else ">u2"
    return np.frombuffer(value[: len(value) // 2 * 2], word).astype(np.uint16)


def read_padding(dataset: Dataset, signed: bool) -> tuple[int, int] | None:
    """Stored values from PixelPaddingValue to PixelPaddingRangeLimit (PS3.3 C.7.5.1.1.2)."""
    value = dataset.get("PixelPaddingValue")
    if not isinstance(value, int):
        return None
    limit = dataset.get("PixelPaddingRangeLimit")
    ends = [value, limit if isinstance(limit, int) else value]
    fixed = [(end + 32768) % 65536 - 32768 if signed else end % 65536 for end in ends]
    return min(fixed), max(fixed)


def read_spacing(dataset: Dataset, frame: int) -> Spacing | None:
    """Calibrated PixelSpacing first, else ImagerPixelSpacing over the magnification (PS3.3 10.7.1.3)."""
    calibrated = numbers(functional_group(dataset, frame, "PixelMeasuresSequence"), "PixelSpacing")
    if _is_spacing(calibrated):
        return Spacing(calibrated[0], calibrated[1], "PixelSpacing")
    imager = numbers(dataset, "ImagerPixelSpacing")
    if not _is_spacing(imager):
        return None
    factor = numbers(dataset, "EstimatedRadiographicMagnificationFactor")
    if factor and math.isfinite(factor[0]) and factor[0] > 0:
        return Spacing(imager[0] / factor[0], imager[1] / factor[0], "ImagerPixelSpacing / magnification")
    return Spacing(imager[0], imager[1], "ImagerPixelSpacing")


def _is_spacing(values: list[float]) -> bool:
    return len(values) == 2 and all(0.001 < v < 10 for v in values)


def read_laterality(dataset: Dataset, frame: int) -> str:
    """`L`, `R` or `B`, from the image, its frame or its series; empty where unknown (PS3.3 C.8.11.7)."""
    frame_anatomy = functional_group(dataset, frame, "FrameAnatomySequence")
    found = (
        text(dataset, "ImageLaterality") or text(frame_anatomy, "FrameLaterality") or text(dataset, "Laterality")
    )
    return found[:1].upper() if found[:1].upper() in ("L", "R", "B") else ""


def read_orientation(dataset: Dataset) -> tuple[str, str]:
    """PatientOrientation of the rows and of the columns (PS3.3 C.7.6.1.1.1); a single value says neither."""
    value = value_of(dataset, "PatientOrientation")
    directions = [] if value is None or isinstance(value, str) else [str(one).strip().upper() for one in value]
    return (directions[0], directions[1]) if len(directions) == 2 else ("", "")


def read_view(dataset: Dataset) -> str:
    """ViewPosition, else the meaning of the view code (PS3.3 C.8.11.7, CID 4014)."""
    codes = dataset.get("ViewCodeSequence") or []
    return text(dataset, "ViewPosition") or (text(codes[0], "CodeMeaning") if len(codes) else "")
