"""Dataset → the words of one frame (H, W); sizes are checked before any decoder may ask for memory."""

import struct
from collections.abc import Callable
from mmap import ACCESS_READ, mmap

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset
from pydicom.dataelem import RawDataElement
from pydicom.encaps import get_frame
from pydicom.uid import (
    JPEG2000,
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEGLSNearLossless,
    RLELossless,
)

from mammo.errors import BadPixels, UnsupportedSyntax

Words = NDArray[np.uint8] | NDArray[np.uint16]

# libjpeg-turbo (8 and 12 bit, lossless), CharLS and OpenJPEG: `imagecodecs` reads 12-bit JPEG Extended too
CODECS: dict[str, Callable[[bytes], NDArray[np.generic]]] = {
    JPEGBaseline8Bit: imagecodecs.jpeg8_decode,
    JPEGExtended12Bit: imagecodecs.jpeg8_decode,
    JPEGLossless: imagecodecs.jpeg8_decode,
    JPEGLosslessSV1: imagecodecs.jpeg8_decode,
    JPEGLSLossless: imagecodecs.jpegls_decode,
    JPEGLSNearLossless: imagecodecs.jpegls_decode,
    JPEG2000Lossless: imagecodecs.jpeg2k_decode,
    JPEG2000: imagecodecs.jpeg2k_decode,
}
NATIVE = {ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian}
SYNTAXES = frozenset(CODECS) | NATIVE | {RLELossless, DeflatedExplicitVRLittleEndian}

# what may start a frame (ITU-T T.81 table B.1, T.87 C.1): a progressive one, of any number of scans, nowhere
SEQUENTIAL, LOSSLESS, JPEG_LS = frozenset({0xC0, 0xC1}), frozenset({0xC3}), frozenset({0xF7})
FRAME_STARTS: dict[str, frozenset[int]] = {
    JPEGBaseline8Bit: SEQUENTIAL,
    JPEGExtended12Bit: SEQUENTIAL,
    JPEGLossless: LOSSLESS,
    JPEGLosslessSV1: LOSSLESS,
    JPEGLSLossless: JPEG_LS,
    JPEGLSNearLossless: JPEG_LS,
}
SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | JPEG_LS
WITHOUT_LENGTH = frozenset({0x00, 0x01, *range(0xD0, 0xDA)})  # no place for them before the start of frame
MAX_TILES = 4096  # of a JPEG 2000 codestream: each costs the decoder kilobytes before a pixel is read


def check_syntax(syntax: str) -> None:
    """Refuse a transfer syntax that is not decoded here (PS3.5 section 10)."""
    if syntax not in SYNTAXES:
        name = UID(syntax).name if syntax else "absent"
        raise UnsupportedSyntax(f"transfer syntax {name}: convert to Explicit VR Little Endian, e.g. with dcmconv")


def decode_frame(dataset: Dataset, syntax: str, frame: int) -> Words:
    """Words (H, W) of the frame numbered from 1, before any grey-scale step."""
    rows, columns = int(dataset.Rows), int(dataset.Columns)
    if syntax in CODECS:
        decoded = _decode_codestream(dataset, syntax, frame)
    elif syntax == RLELossless:
        decoded = _decode_rle(dataset, frame)
    else:
        decoded = _decode_plain(dataset, syntax, frame)
    if decoded.shape != (rows, columns):
        raise BadPixels(f"decoded size {decoded.shape}, but Rows × Columns is {rows} × {columns}: export it again")
    return _as_words(decoded, int(dataset.BitsStored))


def _frames(dataset: Dataset) -> int:
    return int(dataset.get("NumberOfFrames") or 1)


def _frame_bytes(dataset: Dataset) -> int:
    return int(dataset.Rows) * int(dataset.Columns) * int(dataset.BitsAllocated) // 8


def _decode_plain(dataset: Dataset, syntax: str, frame: int) -> NDArray[np.generic]:
    """Uncompressed words (PS3.5 8.1.1, 8.2); a twentieth more than the header asks for may be padding."""
    size, data = _frame_bytes(dataset), _plain_bytes(dataset)
    needed = size * _frames(dataset)
    if not needed <= len(data) <= needed + needed // 20 + 1:
        raise BadPixels(f"{len(data)} bytes of pixel data, {needed} expected: truncated or wrong Rows and Columns")
    order = ">" if syntax == ExplicitVRBigEndian else "<"
    shape = int(dataset.Rows), int(dataset.Columns)
    is_ow = dataset.get_item("PixelData", keep_deferred=True).VR == "OW"
    if int(dataset.BitsAllocated) == 8 and order == ">" and is_ow:
        data = np.frombuffer(data, ">u2", len(data) // 2).astype("<u2").tobytes()
    word = np.dtype(f"{order}u2" if int(dataset.BitsAllocated) == 16 else "u1")
    return np.frombuffer(data, word, shape[0] * shape[1], (frame - 1) * size).reshape(shape)


def _plain_bytes(dataset: Dataset) -> bytes | memoryview:
    """Pixel data of a whole file, mapped where they were left in it: the words are read once, by the look-up."""
    element = dataset.get_item("PixelData", keep_deferred=True)
    if not isinstance(element, RawDataElement) or element.value is not None:
        return bytes(dataset.PixelData)
    with open(dataset.filename, "rb") as file:
        whole = mmap(file.fileno(), 0, access=ACCESS_READ)
    return memoryview(whole)[element.value_tell : element.value_tell + element.length]


def _frame_data(dataset: Dataset, frame: int) -> bytes:
    """Encapsulated bytes of one frame, found by either offset table or by its fragments (PS3.5 A.4)."""
    tables = ("ExtendedOffsetTable", "ExtendedOffsetTableLengths")
    offsets = (dataset[tables[0]].value, dataset[tables[1]].value) if tables[0] in dataset else None
    try:
        return get_frame(dataset.PixelData, frame - 1, number_of_frames=_frames(dataset), extended_offsets=offsets)
    except Exception as error:  # fragments and offsets are arbitrary bytes
        raise BadPixels(f"frame {frame} cannot be found in the pixel data: truncated, export it again") from error


def _decode_rle(dataset: Dataset, frame: int) -> NDArray[np.generic]:
    """PackBits planes (PS3.5 annex G): two bytes give 128 at most, so the output is bounded by the input."""
    data = _frame_data(dataset, frame)
    needed, word = _frame_bytes(dataset), np.dtype("<u2" if int(dataset.BitsAllocated) == 16 else "u1")
    if needed > 64 * len(data):
        raise BadPixels(f"{len(data)} bytes of RLE data cannot hold {needed}: truncated or wrong Rows and Columns")
    try:
        decoded = imagecodecs.dicomrle_decode(data, word, out=needed)
    except Exception as error:  # the codec's own error type
        raise BadPixels(f"RLE data cannot be decoded ({type(error).__name__}): export it again") from error
    if len(decoded) != needed:
        raise BadPixels(f"{len(decoded)} bytes of decoded RLE data, {needed} expected: truncated")
    return np.frombuffer(decoded, word).reshape(int(dataset.Rows), int(dataset.Columns))


def _decode_codestream(dataset: Dataset, syntax: str, frame: int) -> NDArray[np.generic]:
    data, told = find_codestream(_frame_data(dataset, frame), syntax)
    expected = int(dataset.Rows), int(dataset.Columns), 1
    if told != expected:
        raise BadPixels(f"compressed image of {told} rows, columns, components; the header says {expected}")
    if b"\xff\xd9" not in data[-16:]:  # some writers pad after it
        raise BadPixels("compressed image without its end marker: truncated, export it again")
    try:
        decoded: NDArray[np.generic] = CODECS[syntax](data)
    except Exception as error:  # each codec has its own error types
        raise BadPixels(f"compressed image cannot be decoded ({type(error).__name__}): export it again") from error
    return decoded


def _as_words(decoded: NDArray[np.generic], bits_stored: int) -> Words:
    """Unsigned words of 8 or 16 bits; a signed value keeps its two's complement bits."""
    if decoded.dtype.kind not in "iu" or decoded.itemsize > 2:
        raise BadPixels(f"decoded to {decoded.dtype}: words of 8 or 16 bits are needed")
    if decoded.itemsize == 1 and bits_stored > 8:
        decoded = decoded.astype(np.int16 if decoded.dtype.kind == "i" else np.uint16)
    contiguous = np.ascontiguousarray(decoded, dtype=decoded.dtype.newbyteorder("="))
    return contiguous.view(np.uint8) if decoded.itemsize == 1 else contiguous.view(np.uint16)


def find_codestream(data: bytes, syntax: str) -> tuple[bytes, tuple[int, int, int]]:
    """The codestream itself, and the rows, columns and components that its header asks for.

    What is decoded begins where the header was read: no other size can hide before it.
    """
    try:
        if syntax in FRAME_STARTS and data[:2] == b"\xff\xd8":
            return data, _jpeg_shape(data, FRAME_STARTS[syntax])
        start = data.find(b"\xff\x4f\xff\x51", 0, 1024)  # some writers keep the JP2 boxes before the codestream
        if syntax not in FRAME_STARTS and start >= 0:
            return data[start:], _jpeg2000_shape(data[start : start + 64])
    except struct.error as error:
        raise BadPixels("compressed image ends inside its header: truncated, export it again") from error
    raise BadPixels("pixel data are not the JPEG or JPEG 2000 that the transfer syntax promises: export it again")


def _jpeg_shape(data: bytes, starts: frozenset[int]) -> tuple[int, int, int]:
    """Walk the marker segments to the start of frame (ITU-T T.81 B.1, B.2.2)."""
    at = 2
    while True:
        prefix, marker = struct.unpack_from(">BB", data, at)
        if prefix != 0xFF or marker in WITHOUT_LENGTH:
            raise BadPixels("JPEG marker expected in the compressed image: corrupt, export it again")
        if marker in SOF_MARKERS:
            if marker not in starts:
                raise BadPixels(
                    f"JPEG frame of type {marker:#x}, which is not the transfer syntax's: export it again"
                )
            rows, columns, components = struct.unpack_from(">HHB", data, at + 5)
            return rows, columns, components
        at += 1 if marker == 0xFF else 2 + max(2, struct.unpack_from(">H", data, at + 2)[0])


def _jpeg2000_shape(data: bytes) -> tuple[int, int, int]:
    """Read the SIZ segment (ITU-T T.800 A.5.1)."""
    right, bottom, left, top, tile_width, tile_height, tile_left, tile_top, components = struct.unpack_from(
        ">8IH", data, 8
    )
    tiles = -(-(right - tile_left) // max(1, tile_width)) * -(-(bottom - tile_top) // max(1, tile_height))
    if tiles > MAX_TILES or right < left or bottom < top:
        raise BadPixels(f"JPEG 2000 image of {tiles} tiles: at most {MAX_TILES} are read")
    return bottom - top, right - left, components
