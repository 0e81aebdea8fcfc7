"""A file becomes a mammogram whatever its transfer syntax, and its facts are what the tags say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom import Dataset, dcmread
from pydicom.data import get_testdata_file
from pydicom.encaps import encapsulate_extended
from pydicom.uid import JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLosslessSV1, RLELossless

from mammo.dicom import LEFT_IN_FILE, grey, load, modality_values, read_dataset
from mammo.errors import BadMammogram
from mammo.lut import by_word
from tests.mammo.files import LOSSLESS, LOSSY, NATIVE, breast, encode, save


@pytest.mark.parametrize("syntax", LOSSLESS, ids=lambda syntax: str(syntax.keyword))
def test_every_lossless_syntax_gives_the_stored_words(syntax: str, tmp_path: Path) -> None:
    words = breast()
    mammogram = load(save(tmp_path / "a.dcm", words, syntax))
    np.testing.assert_array_equal(mammogram.words, words)
    assert mammogram.words.dtype == np.uint16
    assert grey(mammogram).dtype == np.float32


@pytest.mark.parametrize("syntax", LOSSY, ids=lambda syntax: str(syntax.keyword))
def test_every_lossy_syntax_gives_nearly_the_stored_words(syntax: str, tmp_path: Path) -> None:
    bits = 8 if syntax == JPEGBaseline8Bit else 12
    smooth = (np.add.outer(np.arange(64), np.arange(48)) * (2**bits - 1) // 110).astype(
        np.uint8 if bits == 8 else np.uint16
    )
    mammogram = load(save(tmp_path / "a.dcm", smooth, syntax, bits=bits))
    assert np.abs(mammogram.words.astype(int) - smooth).max() <= 2**bits // 40


@pytest.mark.parametrize("syntax", LOSSLESS[:5])
def test_signed_data_keep_their_sign(syntax: str, tmp_path: Path) -> None:
    words = breast().astype(np.int16) - 1000
    mammogram = load(save(tmp_path / "a.dcm", words, syntax, bits=16))
    np.testing.assert_array_equal(modality_values(mammogram), words)


@pytest.mark.filterwarnings("ignore:The pixel data is")
@pytest.mark.parametrize(
    "name",
    [
        "MR_small.dcm",
        "MR_small_RLE.dcm",
        "MR_small_bigendian.dcm",
        "MR_small_implicit.dcm",
        "MR_small_jp2klossless.dcm",
        "MR_small_jpeg_ls_lossless.dcm",
        "MR_small_padded.dcm",
        "J2K_pixelrep_mismatch.dcm",
        "JPEGLSNearLossless_16.dcm",
        "693_J2KI.dcm",
    ],
)
def test_the_files_of_pydicom_decode_as_pydicom_does(name: str, tmp_path: Path) -> None:
    path = _as_mammogram(name, tmp_path)
    mammogram = load(path)
    stored = by_word(mammogram.pipeline, 8 * mammogram.words.itemsize)[mammogram.words]
    np.testing.assert_array_equal(stored, dcmread(str(get_testdata_file(name))).pixel_array)


def test_a_12_bit_jpeg_that_pydicom_refuses_is_decoded(tmp_path: Path) -> None:
    mammogram = load(_as_mammogram("JPEG-lossy.dcm", tmp_path))
    assert mammogram.words.shape == (1024, 256)
    assert mammogram.words.max() > 255


def _as_mammogram(name: str, folder: Path) -> Path:
    """A file that pydicom ships, with another modality."""
    dataset = dcmread(str(get_testdata_file(name)))
    dataset.Modality = "MG"
    dataset.save_as(folder / name)
    return folder / name


def test_the_facts_are_those_of_the_tags(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.dcm",
        breast(),
        Manufacturer="GE MEDICAL SYSTEMS",
        ImageLaterality="R",
        ViewPosition="MLO",
        PatientOrientation=["P", "L"],
        PresentationIntentType="FOR PROCESSING",
    )
    mammogram = load(path)
    assert (mammogram.vendor, mammogram.laterality, mammogram.view) == ("GE MEDICAL SYSTEMS", "R", "MLO")
    assert (mammogram.intent, mammogram.orientation) == ("FOR PROCESSING", ("P", "L"))
    assert mammogram.syntax == "Explicit VR Little Endian"


def test_calibrated_spacing_is_preferred_and_its_origin_recorded(tmp_path: Path) -> None:
    imager = {"ImagerPixelSpacing": [0.1, 0.1], "EstimatedRadiographicMagnificationFactor": 1.25}
    files: list[tuple[dict[str, Any], float, str]] = [
        ({**imager, "PixelSpacing": [0.07, 0.07]}, 0.07, "PixelSpacing"),
        (imager, 0.08, "ImagerPixelSpacing / magnification"),
        ({"ImagerPixelSpacing": [0.1, 0.1]}, 0.1, "ImagerPixelSpacing"),
    ]
    for tags, millimetres, origin in files:
        spacing = load(save(tmp_path / "a.dcm", breast(), **tags)).spacing
        assert spacing is not None
        assert spacing.row_mm == pytest.approx(millimetres)
        assert spacing.origin == origin
    assert load(save(tmp_path / "d.dcm", breast())).spacing is None


def _frame_voi(centre: float) -> Dataset:
    voi, group = Dataset(), Dataset()
    voi.WindowCenter, voi.WindowWidth = centre, 200
    group.FrameVOILUTSequence = [voi]
    return group


@pytest.mark.parametrize("syntax", [LOSSLESS[1], RLELossless, JPEGLosslessSV1])
def test_a_named_frame_has_the_window_of_its_functional_group(syntax: str, tmp_path: Path) -> None:
    frames = np.stack([breast(seed=seed) for seed in range(3)])
    path = save(
        tmp_path / "dbt.dcm",
        frames,
        syntax,
        PerFrameFunctionalGroupsSequence=[_frame_voi(1000), _frame_voi(2000), _frame_voi(3000)],
        SharedFunctionalGroupsSequence=[_frame_voi(9)],
    )
    mammogram = load(path, frame=2)
    np.testing.assert_array_equal(mammogram.words, frames[1])
    assert [voi.centre for voi in mammogram.pipeline.vois if hasattr(voi, "centre")] == [2000]
    with pytest.raises(BadMammogram, match="name a frame from 1 to 3"):
        load(path)
    with pytest.raises(BadMammogram, match="frame 4 of 3"):
        load(path, frame=4)


@pytest.mark.parametrize("syntax", NATIVE)
def test_a_large_file_is_mapped_and_gives_the_same_words(syntax: str, tmp_path: Path) -> None:
    frames = np.stack([breast(800, 500, seed=seed) for seed in range(2)])
    assert frames.nbytes > LEFT_IN_FILE
    path = save(tmp_path / "large.dcm", frames, syntax, NumberOfFrames=2)
    assert read_dataset(path).get_item("PixelData", keep_deferred=True).value is None
    for number, frame in enumerate(frames, start=1):
        np.testing.assert_array_equal(load(path, frame=number).words, frame)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(BadMammogram, match="truncated"):
        load(path, frame=1)


def test_a_frame_is_found_by_an_extended_offset_table(tmp_path: Path) -> None:
    frames = np.stack([breast(seed=seed) for seed in range(3)])
    path = save(tmp_path / "dbt.dcm", frames, JPEGLosslessSV1)
    dataset = dcmread(path)
    streams = [encode(frame, JPEGLosslessSV1, 12) for frame in frames]
    dataset.PixelData, dataset.ExtendedOffsetTable, dataset.ExtendedOffsetTableLengths = encapsulate_extended(
        streams
    )
    dataset.save_as(path)
    np.testing.assert_array_equal(load(path, frame=3).words, frames[2])


def test_shared_groups_hold_where_the_frame_has_none(tmp_path: Path) -> None:
    frames = np.stack([breast(seed=seed) for seed in range(2)])
    path = save(tmp_path / "dbt.dcm", frames, SharedFunctionalGroupsSequence=[_frame_voi(9)])
    assert load(path, frame=1).pipeline.vois[0].centre == 9  # type: ignore[union-attr]


def test_padding_is_air_and_black(tmp_path: Path) -> None:
    words = breast()
    words[:, -8:] = 4000
    words[:, -9] = 3990
    path = save(tmp_path / "a.dcm", words, PixelPaddingValue=4000, PixelPaddingRangeLimit=3985)
    mammogram = load(path)
    assert mammogram.air[:, -9:].all()
    assert np.mean(mammogram.air[:, :-9] == (words[:, :-9] == 0)) > 0.99  # what is black and not padded is air too
    for photometric in ("MONOCHROME1", "MONOCHROME2"):
        again = load(
            save(tmp_path / "b.dcm", words, PixelPaddingValue=4000, PhotometricInterpretation=photometric)
        )
        assert (grey(again)[:, -8:] == 0).all()


def test_one_padded_pixel_does_not_make_tissue_of_the_background(tmp_path: Path) -> None:
    words = breast()
    words[0, 0] = 4000
    mammogram = load(save(tmp_path / "a.dcm", words, PixelPaddingValue=4000))
    assert mammogram.padding.sum() == 1
    assert np.mean(mammogram.air == ((words == 0) | (words == 4000))) > 0.99


def test_a_single_orientation_says_nothing(tmp_path: Path) -> None:
    assert load(save(tmp_path / "a.dcm", breast(), PatientOrientation="CC")).orientation == ("", "")


def test_air_is_estimated_where_nothing_is_padded(tmp_path: Path) -> None:
    words = breast()
    mammogram = load(save(tmp_path / "a.dcm", words))
    assert np.mean(mammogram.air == (words == 0)) > 0.99


def test_bits_above_bits_stored_do_not_count(tmp_path: Path) -> None:
    words = breast()
    dirty = words | np.uint16(0x8000)
    clean, soiled = load(save(tmp_path / "a.dcm", words)), load(save(tmp_path / "b.dcm", dirty))
    np.testing.assert_array_equal(grey(clean), grey(soiled))


def test_12_bit_extended_keeps_more_than_8_bits(tmp_path: Path) -> None:
    ramp = np.tile(np.linspace(0, 4095, 256).astype(np.uint16), (64, 1))
    mammogram = load(save(tmp_path / "a.dcm", ramp, JPEGExtended12Bit))
    assert mammogram.words.max() > 4000
