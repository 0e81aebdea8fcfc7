"""Whatever is wrong with a file, one typed error names it; a hostile header asks for no memory."""

import struct
import tracemalloc
from io import BytesIO
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread
from pydicom.encaps import encapsulate
from pydicom.uid import (
    MPEG2MPML,
    DeflatedExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from mammo.decode import find_codestream
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
from tests.mammo.files import breast, claim, encode, save

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


def test_a_deflated_file_unfolds_within_bounds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.dcm", breast(800, 500), DeflatedExplicitVRLittleEndian)
    monkeypatch.setattr("mammo.dicom.MAX_INFLATED", 2**16)
    tracemalloc.start()
    with pytest.raises(TooLarge, match="unfold"):
        load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * path.stat().st_size + 2**20


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_a_deflated_file_that_is_cut_off_raises(keep: float, tmp_path: Path) -> None:
    path = save(tmp_path / "a.dcm", breast(), DeflatedExplicitVRLittleEndian)
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(BadPixels, match="truncated"):
        load(path)


def test_an_unknown_syntax_is_named_whether_its_header_parses_or_not(tmp_path: Path) -> None:
    path = claim(save(tmp_path / "a.dcm", breast(), JPEGLosslessSV1), MPEG2MPML)
    for content in (path.read_bytes(), path.read_bytes()[:400] + b"\xff" * 50):
        path.write_bytes(content)
        with pytest.raises(UnsupportedSyntax, match="MPEG2"):
            load(path)


def test_a_data_set_without_a_file_header_is_told_what_to_do(tmp_path: Path) -> None:
    path = save(tmp_path / "a.dcm", breast())
    path.write_bytes(path.read_bytes()[132:])
    with pytest.raises(NotDicom, match="give it one"):
        load(path)


@pytest.mark.parametrize("keyword", ["WindowCenter", "RescaleSlope", "PixelSpacing"])
def test_a_number_that_is_none_names_its_tag(keyword: str, tmp_path: Path) -> None:
    tags: dict[str, Any] = {"WindowCenter": [9, 9], "WindowWidth": [9, 9], keyword: [1234, 1234]}
    path = save(tmp_path / "a.dcm", breast(), **tags)
    path.write_bytes(path.read_bytes().replace(b"1234", b"12x4"))
    with pytest.raises(MissingTag, match=keyword) as raised:
        load(path)
    assert "12x4" not in str(raised.value)


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
        find_codestream(bytes(stream), JPEG2000Lossless)


def replace_stream(path: Path, stream: bytes) -> None:
    dataset = dcmread(path)
    dataset.PixelData = encapsulate([stream])
    dataset.save_as(path)


def test_what_is_decoded_is_what_was_checked(tmp_path: Path) -> None:
    """JP2 boxes are left out; a decoy of the right size in a box that decoders skip gains nothing."""
    path = save(tmp_path / "a.dcm", breast(), JPEG2000Lossless)
    how: dict[str, Any] = {"codecformat": "jp2", "level": 0, "reversible": True, "bitspersample": 12}
    boxed = bytes(imagecodecs.jpeg2k_encode(breast(seed=5), **how))
    replace_stream(path, boxed)
    np.testing.assert_array_equal(load(path).words, breast(seed=5))
    first_boxes = 12 + struct.unpack_from(">I", boxed, 12)[0]
    decoy = struct.pack(">I4s", 8 + 64, b"free") + encode(breast(), JPEG2000Lossless, 12)[:64]
    replace_stream(path, boxed[:first_boxes] + decoy + boxed[first_boxes:])
    with pytest.raises(BadPixels, match="cannot be decoded"):
        load(path)


@pytest.mark.parametrize("syntax", [JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLosslessSV1, JPEGLSLossless])
def test_a_progressive_jpeg_is_refused_before_its_scans_are_read(syntax: str, tmp_path: Path) -> None:
    words = (breast() >> 4).astype(np.uint8)
    path = save(tmp_path / "a.dcm", words, JPEGBaseline8Bit, bits=8)
    picture = BytesIO()
    Image.fromarray(words).save(picture, "JPEG", progressive=True)
    replace_stream(path, picture.getvalue())
    claim(path, syntax)
    with pytest.raises(BadPixels, match="0xc2"):
        load(path)


@pytest.mark.parametrize("hidden", [b"\xff\x01", b"\xff\x00", b"\xff\xd0"])
def test_a_marker_without_length_hides_no_frame(hidden: bytes) -> None:
    """We would skip by the two bytes that follow, the decoder would not: they would see different frames."""
    stream = encode((breast() >> 4).astype(np.uint8), JPEGBaseline8Bit, 8)
    with pytest.raises(BadPixels, match="marker expected"):
        find_codestream(stream[:2] + hidden + stream[2:], JPEGBaseline8Bit)


@pytest.mark.parametrize(
    ("claimed", "real"), [(JPEG2000Lossless, JPEGLosslessSV1), (JPEGLosslessSV1, JPEG2000Lossless)]
)
def test_a_codestream_of_another_syntax_raises(claimed: str, real: str, tmp_path: Path) -> None:
    path = save(tmp_path / "a.dcm", breast(), claimed)
    replace_stream(path, encode(breast(), real, 12))
    with pytest.raises(BadPixels, match="promises"):
        load(path)


def test_messages_never_hold_values_of_the_patient(tmp_path: Path) -> None:
    path = save(tmp_path / "a.dcm", breast(), PatientName="Secret^Name", PatientID="4711", Modality="US")
    with pytest.raises(NotMammogram) as raised:
        load(path)
    assert "Secret" not in str(raised.value)
    assert "4711" not in str(raised.value)


def test_a_decoded_image_owns_native_words(tmp_path: Path) -> None:
    mammogram = load(save(tmp_path / "a.dcm", breast(), RLELossless))
    assert mammogram.words.dtype == np.dtype(np.uint16)
