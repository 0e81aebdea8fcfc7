"""Grey-scale pipeline of one file (stored values → modality → VOI → presentation) → one table of float32.

A function on integers is a table: the steps run once over all 2^bits stored values, and an image is rendered
by one look-up. Order after PS3.4 N.2: modality LUT, VOI LUT, presentation; inversion follows the VOI step.
"""

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from mammo.errors import NoSuchVoi
from mammo.style import NO_STYLE, Style, sigmoid

Floats = NDArray[np.float64]
LEVELS = 65535  # greatest grey level of 16 bits
Level = TypeVar("Level", np.float32, np.uint16, np.uint8)


@dataclass(frozen=True)
class Lut:
    """One item of a LUT sequence, PS3.3 C.11.1.1 and C.11.2.1.1."""

    first: int  # stored or modality value that maps to data[0]
    bits: int  # of the output
    data: NDArray[np.uint16]  # (entries,)
    explanation: str = ""


@dataclass(frozen=True)
class Rescale:
    """Slope and intercept of PS3.3 C.11.1.1.2."""

    slope: float = 1.0
    intercept: float = 0.0


@dataclass(frozen=True)
class Window:
    """Centre and width of PS3.3 C.11.2.1.2, with the function of C.11.2.1.3."""

    centre: float
    width: float
    function: Literal["LINEAR", "LINEAR_EXACT", "SIGMOID"] = "LINEAR"
    explanation: str = ""


@dataclass(frozen=True)
class Pipeline:
    """All that a file says about turning its stored values into grey levels."""

    bits: int = 16  # BitsStored
    signed: bool = False
    modality: Rescale | Lut = Rescale()
    vois: tuple[Lut | Window, ...] = ()  # LUT items first, then windows
    inverted: bool = False
    padding: tuple[int, int] | None = None  # first and last stored value that mean air


def apply_lut(values: Floats, lut: Lut) -> Floats:
    """Look values up; beyond the first and last entry their value holds (PS3.3 C.11.1.1.1, C.11.2.1.1)."""
    index = np.clip(np.rint(values) - lut.first, 0, len(lut.data) - 1).astype(np.intp)
    return np.asarray(lut.data[index], dtype=np.float64)


def apply_modality(values: Floats, modality: Rescale | Lut) -> Floats:
    """Stored values → modality values (PS3.3 C.11.1)."""
    if isinstance(modality, Lut):
        return apply_lut(values, modality)
    return values * modality.slope + modality.intercept


def apply_window(values: Floats, window: Window) -> Floats:
    """Modality values → [0, 1] by the window's function (PS3.3 C.11.2.1.2.1, C.11.2.1.3)."""
    if window.function == "SIGMOID":
        # beyond ±500 the curve is 0 or 1 in float64: clipped so that exp stays finite
        exponent = np.clip(-4 * (values - window.centre) / window.width, -500, 500)
        return np.asarray(1 / (1 + np.exp(exponent)))
    if window.function == "LINEAR_EXACT":
        return np.clip((values - window.centre) / window.width + 0.5, 0, 1)
    if window.width == 1:
        return np.asarray(values > window.centre - 0.5, dtype=np.float64)
    return np.clip((values - (window.centre - 0.5)) / (window.width - 1) + 0.5, 0, 1)


def apply_voi(values: Floats, voi: Lut | Window) -> Floats:
    """Modality values → [0, 1] (PS3.3 C.11.2)."""
    if isinstance(voi, Lut):
        return np.asarray(apply_lut(values, voi) / (2**voi.bits - 1))
    return apply_window(values, voi)


def stored_range(pipeline: Pipeline) -> tuple[int, int]:
    """Least and greatest stored value that BitsStored and PixelRepresentation allow (PS3.3 C.7.6.3.1)."""
    half = 2 ** (pipeline.bits - 1)
    return (-half, half - 1) if pipeline.signed else (0, 2 * half - 1)


def choose_voi(pipeline: Pipeline, choice: str) -> Lut | Window | None:
    """`none`, `default` (the first, if any), an index from 0, or an explanation such as NORMAL or HARDER."""
    if choice == "none":
        return None
    if choice == "default":
        return pipeline.vois[0] if pipeline.vois else None
    if choice.isdecimal() and int(choice) < len(pipeline.vois):
        return pipeline.vois[int(choice)]
    for voi in pipeline.vois:
        if voi.explanation.casefold() == choice.casefold():
            return voi
    known = ", ".join(f"{i}: {voi.explanation or 'unnamed'}" for i, voi in enumerate(pipeline.vois))
    raise NoSuchVoi(f"VOI {choice!r} is not in the file: choose none, default, or one of [{known}]")


def full_range(values: Floats, pipeline: Pipeline) -> Floats:
    """Modality values → [0, 1] without a VOI: linear over all that the modality step can give."""
    if isinstance(pipeline.modality, Lut):  # its entries, not its bits: real files promise 16 and use 10
        ends = pipeline.modality.data.astype(np.float64)
    else:
        ends = apply_modality(np.array(stored_range(pipeline), np.float64), pipeline.modality)
    low, high = float(ends.min()), float(ends.max())
    return (values - low) / max(high - low, 1e-12)


def render(
    stored: Floats, pipeline: Pipeline, voi: str = "default", style: Style = NO_STYLE
) -> NDArray[np.float32]:
    """Stored values → grey levels in [0, 1], value by value: the formula that the table holds.

    A style of kind voi takes the place of the VOI choice; a sigmoid comes after it and after the inversion of
    MONOCHROME1 or of the presentation LUT shape INVERSE (PS3.3 C.7.6.3.1.2, C.11.6.1); padding is black.
    """
    values = apply_modality(stored, pipeline.modality)
    chosen = choose_voi(pipeline, style.voi if style.kind == "voi" else voi)
    grey = full_range(values, pipeline) if chosen is None else apply_voi(values, chosen)
    out = np.asarray(1 - grey if pipeline.inverted else grey, dtype=np.float32)
    if style.kind == "sigmoid":
        out = sigmoid(out, style)
    if pipeline.padding is not None:
        out[(stored >= pipeline.padding[0]) & (stored <= pipeline.padding[1])] = 0
    return np.clip(out, 0, 1)


def by_word(pipeline: Pipeline, word_bits: int) -> Floats:
    """Stored value of each word of BitsAllocated bits; bits above BitsStored do not count (PS3.5 8.1.1)."""
    words = np.arange(2**pipeline.bits, dtype=np.int64)
    if pipeline.signed:
        words[2 ** (pipeline.bits - 1) :] -= 2**pipeline.bits
    return np.tile(words, 2 ** (word_bits - pipeline.bits)).astype(np.float64)


def grey_table(
    pipeline: Pipeline, word_bits: int, voi: str = "default", style: Style = NO_STYLE
) -> NDArray[np.float32]:
    """Grey level of each possible word (2^word_bits,): all steps of the pipeline and the style at once."""
    once = render(by_word(pipeline, pipeline.bits), pipeline, voi, style)
    return np.tile(once, 2 ** (word_bits - pipeline.bits))


def as_words(grey: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Grey levels in [0, 1] → the nearest of 0 to LEVELS."""
    return np.rint(grey * LEVELS).astype(np.uint16)


def look_up(table: NDArray[Level], words: NDArray[np.unsignedinteger]) -> NDArray[Level]:
    """Index the table, which has an entry for every possible word, by each word of an image (H, W).

    Arrow indexes by 16-bit words as they are; numpy would widen them to 64 bits first and take thrice as long.
    """
    levels = compute.take(pyarrow.array(table), pyarrow.array(words.reshape(-1)), boundscheck=False)
    return np.frombuffer(levels.buffers()[1], table.dtype, words.size).reshape(words.shape)
