"""DICOM file → Mammogram: stored words, grey-scale pipeline, air, spacing, laterality, view, vendor."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, dcmread
from pydicom.errors import InvalidDicomError
from pydicom.filereader import read_file_meta_info

from mammo import header
from mammo.air import estimate_air
from mammo.decode import Words, check_syntax, decode_frame
from mammo.errors import BadMammogram, NotDicom, TooLarge
from mammo.header import Spacing
from mammo.lut import Pipeline, apply_modality, by_word, grey_table, look_up
from mammo.style import NO_STYLE, Style

MAX_BYTES = 2**31  # of a file: an uncompressed tomosynthesis series has about half

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
        return np.asarray(((stored >= low) & (stored <= high))[self.words])

    @cached_property
    def air(self) -> NDArray[np.bool_]:
        """(H, W) where there is no breast: the file's padding, else estimated from the grey levels."""
        return self.padding if self.padding.any() else estimate_air(grey(self))

    @property
    def _word_bits(self) -> int:
        return 8 * self.words.itemsize


def grey(mammogram: Mammogram, voi: str = "default", style: Style = NO_STYLE) -> NDArray[np.float32]:
    """(H, W) grey levels in [0, 1] after the whole pipeline and the style, black where there is padding."""
    table = grey_table(mammogram.pipeline, mammogram._word_bits, voi, style)
    return look_up(table, mammogram.words)


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
    """Parse a file of a known syntax and bounded size; within `typed_errors`."""
    size = path.stat().st_size
    if size == 0:
        raise NotDicom("the file is empty: export it again")
    if size > MAX_BYTES:
        raise TooLarge(f"{size} bytes: at most {MAX_BYTES} are read")
    check_syntax(str(read_file_meta_info(path).get("TransferSyntaxUID", "")))  # before a deflated file unfolds
    return dcmread(path, stop_before_pixels=not pixels)


def mammogram_of(dataset: Dataset, frame: int | None = None) -> Mammogram:
    """Dataset → Mammogram; within `typed_errors`."""
    header.check_image(dataset)
    number = header.choose_frame(dataset, frame)
    syntax = dataset.file_meta.TransferSyntaxUID
    pipeline = header.read_pipeline(dataset, number)
    orientation = [str(v) for v in dataset.get("PatientOrientation") or []]
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
        orientation=(orientation[0], orientation[1]) if len(orientation) == 2 else ("", ""),
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
        raise NotDicom(f"{path}: not a DICOM file (no DICM prefix): remove it from the folder") from error
    except MemoryError as error:
        raise TooLarge(f"{path}: not enough memory to read it") from error
    except OSError as error:
        raise NotDicom(f"{path}: cannot be read ({error.strerror or type(error).__name__})") from error
    except Exception as error:  # a parser that meets arbitrary bytes may stumble in any way
        raise NotDicom(f"{path}: corrupt ({type(error).__name__} while reading): export it again") from error
