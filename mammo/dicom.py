"""DICOM file → Mammogram: stored words, grey-scale pipeline, air, spacing, laterality, view, vendor."""

import logging
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, dcmread, filereader
from pydicom.dataset import FileMetaDataset
from pydicom.errors import InvalidDicomError
from pydicom.uid import DeflatedExplicitVRLittleEndian

from mammo import header
from mammo.air import estimate_air
from mammo.decode import NATIVE, Words, check_syntax, decode_frame
from mammo.errors import BadMammogram, BadPixels, NotDicom, TooLarge
from mammo.header import Spacing
from mammo.lut import Pipeline, apply_modality, as_words, by_word, grey_table, look_up
from mammo.style import NO_STYLE, Style

MAX_BYTES = 2**31  # of a file: an uncompressed tomosynthesis series has about half
MAX_INFLATED = 2**28  # bytes that a deflated file may unfold to: twice the largest frame
FIRST_GROUP = 132 + 12  # bytes of a file before the elements that FileMetaInformationGroupLength counts
LEFT_IN_FILE = 2**20  # bytes: larger values of an uncompressed file, its pixels, are mapped instead of read
NO_PREFIX = (
    "no DICM prefix: a data set without its file header (give it one, e.g. with dcmconv --read-dataset), "
    "or no DICOM at all (remove it from the folder)"
)

logging.getLogger("pydicom").setLevel(logging.CRITICAL)  # its warnings quote tag values


@dataclass(frozen=True)
class Mammogram:
    """One 2D image with all that its file says about it."""

    words: Words  # (H, W), as stored
    pipeline: Pipeline
    spacing: Spacing | None
    laterality: str  # L, R, B or empty
    view: str
    vendor: str
    intent: str  # FOR PRESENTATION or FOR PROCESSING: different images
    photometric: str
    syntax: str  # name of the transfer syntax
    orientation: tuple[str, str]  # PatientOrientation: of the rows, of the columns

    @cached_property
    def padding(self) -> NDArray[np.bool_]:
        """(H, W) where the stored value is pixel padding (PS3.3 C.7.5.1.1.2)."""
        if self.pipeline.padding is None:
            return np.zeros(self.words.shape, np.bool_)
        low, high = self.pipeline.padding
        stored = by_word(self.pipeline, self._word_bits)
        is_padding = (stored >= low) & (stored <= high)
        return look_up(is_padding.view(np.uint8), self.words).view(np.bool_)

    @cached_property
    def air(self) -> NDArray[np.bool_]:
        """(H, W) where there is no breast: the file's padding, and what the grey levels show as air."""
        return self.padding | estimate_air(grey(self))

    @property
    def _word_bits(self) -> int:
        return 8 * self.words.itemsize


def grey(mammogram: Mammogram, voi: str = "default", style: Style = NO_STYLE) -> NDArray[np.float32]:
    """(H, W) grey levels in [0, 1] after the whole pipeline and the style, black where there is padding."""
    return look_up(_table(mammogram, voi, style), mammogram.words)


def grey_words(mammogram: Mammogram, voi: str = "default", style: Style = NO_STYLE) -> NDArray[np.uint16]:
    """(H, W) the same grey levels as whole numbers from 0 to 65535: half the memory, and no arithmetic a pixel."""
    return look_up(as_words(_table(mammogram, voi, style)), mammogram.words)


def _table(mammogram: Mammogram, voi: str, style: Style) -> NDArray[np.float32]:
    return grey_table(mammogram.pipeline, mammogram._word_bits, voi, style)


def modality_values(mammogram: Mammogram) -> NDArray[np.float32]:
    """(H, W) values before VOI, presentation and style: those of the modality step (PS3.3 C.11.1)."""
    pipeline = mammogram.pipeline
    stored = by_word(pipeline, mammogram._word_bits)
    return look_up(apply_modality(stored, pipeline.modality).astype(np.float32), mammogram.words)


def load(path: Path, frame: int | None = None) -> Mammogram:
    """Read, check and decode one file; a frame number (from 1) is needed where there are several."""
    with typed_errors(path):
        return mammogram_of(read_dataset(path), frame)


def read_dataset(path: Path, pixels: bool = True) -> Dataset:
    """Parse a file of bounded size; within `typed_errors`."""
    size = path.stat().st_size
    if size == 0:
        raise NotDicom("the file is empty: export it again")
    if size > MAX_BYTES:
        raise TooLarge(f"{size} bytes: at most {MAX_BYTES} are read")
    meta = filereader.read_file_meta_info(path)
    syntax = str(meta.get("TransferSyntaxUID", ""))
    if syntax == DeflatedExplicitVRLittleEndian:
        return read_deflated(path, meta)
    try:
        return dcmread(path, stop_before_pixels=not pixels, defer_size=LEFT_IN_FILE if syntax in NATIVE else None)
    except Exception:
        check_syntax(syntax)  # one that is not known says more than how its parsing failed
        raise


def read_deflated(path: Path, meta: FileMetaDataset) -> Dataset:
    """Unfold and parse a deflated file (PS3.5 A.5), up to a size that any mammogram has."""
    inflate, folded = zlib.decompressobj(-zlib.MAX_WBITS), path.read_bytes()
    try:
        data = inflate.decompress(folded[FIRST_GROUP + meta.FileMetaInformationGroupLength :], MAX_INFLATED)
    except zlib.error as error:
        raise BadPixels("deflated data are corrupt: export it again") from error
    if len(data) >= MAX_INFLATED:
        raise TooLarge(f"deflated data unfold to {MAX_INFLATED} bytes and more: convert it with dcmconv")
    if not inflate.eof:
        raise BadPixels("deflated data end early: truncated, export it again")
    dataset = filereader.read_dataset(BytesIO(data), is_implicit_VR=False, is_little_endian=True)
    dataset.file_meta = meta
    return dataset


def mammogram_of(dataset: Dataset, frame: int | None = None) -> Mammogram:
    """Dataset → Mammogram; within `typed_errors`."""
    check_syntax(str(dataset.file_meta.get("TransferSyntaxUID", "")))
    header.check_image(dataset)
    number = header.choose_frame(dataset, frame)
    syntax = dataset.file_meta.TransferSyntaxUID
    pipeline = header.read_pipeline(dataset, number)
    return Mammogram(
        words=decode_frame(dataset, syntax, number),
        pipeline=pipeline,
        spacing=header.read_spacing(dataset, number),
        laterality=header.read_laterality(dataset, number),
        view=header.read_view(dataset),
        vendor=header.text(dataset, "Manufacturer") or header.text(dataset, "ManufacturerModelName"),
        intent=header.text(dataset, "PresentationIntentType"),
        photometric=header.text(dataset, "PhotometricInterpretation"),
        syntax=syntax.name,
        orientation=header.read_orientation(dataset),
    )


@contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Let arbitrary bytes raise only our own errors: each names the file, none a value of the patient."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pydicom warns with the values of tags
            yield
    except BadMammogram as error:
        raise type(error)(f"{path}: {error}") from error
    except InvalidDicomError as error:
        raise NotDicom(f"{path}: {NO_PREFIX}") from error
    except MemoryError as error:
        raise TooLarge(f"{path}: not enough memory to read it") from error
    except OSError as error:
        raise NotDicom(f"{path}: cannot be read ({error.strerror or type(error).__name__})") from error
    except Exception as error:  # a parser that meets arbitrary bytes may stumble in any way
        raise NotDicom(f"{path}: corrupt ({type(error).__name__} while reading): export it again") from error
