"""Whatever is wrong with a file, one typed error names it; a hostile header asks for no memory."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.data import get_testdata_file
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000Lossless, JPEGExtended12Bit, JPEGLosslessSV1, JPEGLSLossless, RLELossless

from mammo.decode import codestream_shape
from mammo.dicom import load
from mammo.errors import (
    BadMammogram,
    BadPixels,
    MissingTag,
    NoPixels,
    NotDicom,
    NotMammogram,
    TooLarge,
    UnsupportedSyntax,
)
from tests.mammo.files import breast, encode, save

WRONG: list[tuple[dict[str, Any], type[BadMammogram], str]] = [
    ({"Modality": "CT"}, NotMammogram, "modality 'CT'"),
    ({"Modality": None}, NotMammogram, "MG is needed"),
    ({"PhotometricInterpretation": "RGB"}, NotMammogram, "'RGB'"),
    ({"PhotometricInterpretation": None}, NotMammogram, "MONOCHROME"),
    ({"SamplesPerPixel": 3}, NotMammogram, "photometric"),
    ({"Rows": None}, MissingTag, "Rows"),
    ({"Columns": 0}, MissingTag, "Columns"),
    ({"BitsStored": None}, MissingTag, "BitsStored"),
    ({"PixelRepresentation": None}, MissingTag, "PixelRepresentation"),
    ({"BitsStored": 20}, BadPixels, "BitsStored 20"),
    ({"BitsAllocated": 32}, BadPixels, "BitsAllocated 32"),
    ({"HighBit": 15}, BadPixels, "HighBit"),
    ({"Rows": 65535, "Columns": 65535}, TooLarge, "65535 × 65535"),
    ({"NumberOfFrames": 100_000}, TooLarge, "100000 frames"),
    ({"Rows": 8000, "Columns": 8000}, BadPixels, "bytes of pixel data"),
    ({"Rows": 48}, BadPixels, "bytes of pixel data"),
]


@pytest.mark.parametrize(("tags", "error", "words"), WRONG)
def test_a_wrong_header_raises_its_own_error(
    tags: dict[str, Any], error: type[BadMammogram], words: str, tmp_path: Path
) -> None:
    path = save(tmp_path / "wrong.dcm", breast(), **tags)
    with pytest.raises(error, match=words) as raised:
        load(path)
    assert type(raised.value) is error
    assert "wrong.dcm" in str(raised.value)


def test_what_is_not_dicom_raises(tmp_path: Path) -> None:
    for name, content in {"empty.dcm": b"", "text.dcm": b"hello" * 99, "zeros.dcm": bytes(500)}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(NotDicom, match=name):
            load(tmp_path / name)
    with pytest.raises(NotDicom, match="No such file"):
        load(tmp_path / "absent.dcm")


def test_a_deflated_file_is_refused_before_it_unfolds() -> None:
    with pytest.raises(UnsupportedSyntax, match="Deflated"):
        load(Path(str(get_testdata_file("image_dfl.dcm"))))


def test_a_file_without_pixels_raises(tmp_path: Path) -> None:
    with pytest.raises(NoPixels, match="report"):
        load(save(tmp_path / "a.dcm", breast()[:0], Rows=5, Columns=5))


@pytest.mark.parametrize("syntax", [RLELossless, JPEGLosslessSV1, JPEGLSLossless, JPEG2000Lossless])
@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_truncated_file_raises(syntax: str, keep: float, tmp_path: Path) -> None:
    path = save(tmp_path / "a.dcm", breast(), syntax)
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(BadMammogram, match=r"a\.dcm"):
        load(path)


@pytest.mark.parametrize("syntax", [JPEGLosslessSV1, JPEGExtended12Bit, JPEGLSLossless, JPEG2000Lossless])
def test_a_codestream_that_ends_early_raises(syntax: str, tmp_path: Path) -> None:
    """The DICOM file is whole, the image in it is not: some decoders would fill the rest with grey."""
    path = save(tmp_path / "a.dcm", breast(), syntax)
    stream = encode(breast(), syntax, 12)
    dataset = dcmread(path)
    dataset.PixelData = encapsulate([stream[: len(stream) // 2]])
    dataset.save_as(path)
    with pytest.raises(BadPixels, match="end marker"):
        load(path)


@pytest.mark.parametrize("syntax", [JPEGLosslessSV1, JPEGLSLossless, JPEG2000Lossless])
def test_a_codestream_of_another_size_than_the_header_raises(syntax: str, tmp_path: Path) -> None:
    with pytest.raises(BadPixels, match="the header says"):
        load(save(tmp_path / "a.dcm", breast(), syntax, Rows=95))


def test_a_decompression_bomb_asks_for_no_memory(tmp_path: Path) -> None:
    """A JPEG 2000 header that promises 60000 × 60000 pixels inside an innocent DICOM header."""
    path = save(tmp_path / "bomb.dcm", breast(), JPEG2000Lossless)
    content = path.read_bytes()
    at = content.index(b"\xff\x4f\xff\x51") + 8
    path.write_bytes(content[:at] + struct.pack(">II", 60000, 60000) + content[at + 8 :])
    tracemalloc.start()
    with pytest.raises(BadPixels):
        load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_million_tiles_are_refused() -> None:
    stream = bytearray(encode(breast(), JPEG2000Lossless, 12))
    stream[24:32] = struct.pack(">II", 1, 1)
    with pytest.raises(BadPixels, match="tiles"):
        codestream_shape(bytes(stream))


def test_messages_never_hold_values_of_the_patient(tmp_path: Path) -> None:
    path = save(tmp_path / "a.dcm", breast(), PatientName="Secret^Name", PatientID="4711", Modality="US")
    with pytest.raises(NotMammogram) as raised:
        load(path)
    assert "Secret" not in str(raised.value)
    assert "4711" not in str(raised.value)


def test_a_decoded_image_owns_native_words(tmp_path: Path) -> None:
    mammogram = load(save(tmp_path / "a.dcm", breast(), RLELossless))
    assert mammogram.words.dtype == np.dtype(np.uint16)
