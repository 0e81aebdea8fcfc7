"""The table holds the standard's formulas: equal to pydicom where it has them, else to values by hand."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydicom import Dataset, dcmread
from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

from mammo.dicom import grey, load, modality_values
from mammo.errors import BadLut, NoSuchVoi
from mammo.lut import LEVELS, Lut, Pipeline, Rescale, Window, apply_window, as_words, grey_table, look_up, render
from mammo.style import NO_STYLE, Style, parse_style
from tests.mammo.files import breast, lut_item, save

SIGMOID = Style("sigmoid", centre=0.4, width=0.3)
CURVE = (4095 * np.linspace(0, 1, 3447) ** 0.5).astype(np.uint16)


def three_luts() -> list[Dataset]:
    """As a GE Senographe writes them: descriptors [3447, 625, 12], three explanations."""
    shapes = {"NORMAL": CURVE, "HARDER": CURVE[::-1], "SOFTER": CURVE // 2}
    return [lut_item(625, data, 12, name) for name, data in shapes.items()]


WINDOWS: list[dict[str, Any]] = [
    {"WindowCenter": 2048, "WindowWidth": 3000},
    {"WindowCenter": 2048.5, "WindowWidth": 999.5, "VOILUTFunction": "LINEAR_EXACT"},
    {"WindowCenter": 2200, "WindowWidth": 600, "VOILUTFunction": "SIGMOID"},
    {"WindowCenter": 2048, "WindowWidth": 1},
    {"WindowCenter": 100, "WindowWidth": 700, "RescaleSlope": 0.5, "RescaleIntercept": -900},
]


@pytest.mark.parametrize("tags", WINDOWS)
def test_windows_are_those_of_pydicom(tags: dict[str, Any], tmp_path: Path) -> None:
    path = save(tmp_path / "a.dcm", breast(), **tags)
    dataset = dcmread(path)
    modality = apply_modality_lut(dataset.pixel_array, dataset)
    expected = apply_voi_lut(modality.astype(np.float64), dataset)
    slope, intercept = tags.get("RescaleSlope", 1), tags.get("RescaleIntercept", 0)
    low, high = intercept, 4095 * slope + intercept
    np.testing.assert_allclose(grey(load(path)), (expected - low) / (high - low), atol=2e-6)


@pytest.mark.parametrize("name", ["NORMAL", "HARDER", "SOFTER"])
def test_voi_luts_are_those_of_pydicom(name: str, tmp_path: Path) -> None:
    path = save(tmp_path / "a.dcm", breast(), VOILUTSequence=three_luts(), VOILUTFunction="SIGMOID")
    dataset = dcmread(path)
    index = ["NORMAL", "HARDER", "SOFTER"].index(name)
    expected = apply_voi_lut(dataset.pixel_array, dataset, index=index) / np.float32(4095)
    np.testing.assert_allclose(grey(load(path), voi=name.lower()), expected, atol=1e-6)
    np.testing.assert_array_equal(grey(load(path), voi=str(index)), grey(load(path), voi=name))


def test_a_modality_lut_is_that_of_pydicom(tmp_path: Path) -> None:
    item = lut_item(100, np.arange(3000)[::-1] * 20, 16, ModalityLUTType="OD")
    path = save(tmp_path / "a.dcm", breast(), ModalityLUTSequence=[item])
    dataset = dcmread(path)
    np.testing.assert_array_equal(modality_values(load(path)), apply_modality_lut(dataset.pixel_array, dataset))


def test_a_signed_lut_starts_below_zero(tmp_path: Path) -> None:
    words = breast().astype(np.int16) - 2000
    item = lut_item(65536 - 500, np.arange(1000) * 4, 12, "NORMAL")
    mammogram = load(save(tmp_path / "a.dcm", words, bits=16, VOILUTSequence=[item]))
    assert isinstance(mammogram.pipeline.vois[0], Lut)
    assert mammogram.pipeline.vois[0].first == -500
    np.testing.assert_allclose(grey(mammogram), np.clip(words + 500, 0, 999) * 4 / 4095, atol=1e-6)


def test_a_voi_lut_after_a_modality_lut_starts_where_that_ends(tmp_path: Path) -> None:
    """Signed words, but a modality LUT gives none below zero: 40000 is no negative number there."""
    words = breast().astype(np.int16) - 2000
    modality = lut_item(65536 - 2000, np.arange(4000) * 16, 16, ModalityLUTType="OD")
    voi = lut_item(40000, np.arange(4000), 12)
    path = save(tmp_path / "a.dcm", words, bits=16, ModalityLUTSequence=[modality], VOILUTSequence=[voi])
    mammogram = load(path)
    assert isinstance(mammogram.pipeline.vois[0], Lut)
    assert mammogram.pipeline.vois[0].first == 40000
    expected = np.clip((words + 2000.0) * 16 - 40000, 0, 3999) / 4095
    np.testing.assert_allclose(grey(mammogram), expected, atol=1e-6)


def test_linear_is_the_formula_of_the_standard() -> None:
    """PS3.3 C.11.2.1.2.1, its own example: centre 2048, width 4096 maps 0 to ymin and 4095 to ymax."""
    values = np.array([-1.0, 0, 1, 2047, 4095, 4096])
    expected = [0, 0, (1 - 2047.5) / 4095 + 0.5, (2047 - 2047.5) / 4095 + 0.5, 1, 1]
    np.testing.assert_allclose(apply_window(values, Window(2048, 4096)), expected, atol=1e-12)
    np.testing.assert_array_equal(apply_window(np.array([0.0, 1]), Window(1, 1)), [0, 1])


def test_linear_exact_and_sigmoid_are_the_formulas_of_the_standard() -> None:
    """PS3.3 C.11.2.1.3.2 and C.11.2.1.3.1, by hand."""
    values = np.array([-10.0, 0, 5, 7.5, 10, 20])
    exact = apply_window(values, Window(5, 10, "LINEAR_EXACT"))
    np.testing.assert_allclose(exact, [0, 0, 0.5, 0.75, 1, 1])
    curved = apply_window(np.array([5.0, 7.5, -1e9, 1e9]), Window(5, 10, "SIGMOID"))
    np.testing.assert_allclose(curved, [0.5, 1 / (1 + np.exp(-1)), 0, 1], atol=1e-12)


def test_monochrome1_is_inverted_after_the_voi_step(tmp_path: Path) -> None:
    tags: dict[str, Any] = {"WindowCenter": 3000, "WindowWidth": 800, "VOILUTFunction": "SIGMOID"}
    positive = grey(load(save(tmp_path / "a.dcm", breast(), **tags)))
    one: dict[str, Any] = {"PhotometricInterpretation": "MONOCHROME1"}
    other: dict[str, Any] = {"PresentationLUTShape": "INVERSE"}
    for inverse in (one, other):
        negative = grey(load(save(tmp_path / "b.dcm", breast(), **tags, **inverse)))
        np.testing.assert_allclose(negative, 1 - positive, atol=1e-6)
    both = grey(load(save(tmp_path / "c.dcm", breast(), **tags, **one, **other)))
    np.testing.assert_array_equal(both, negative)


def test_no_voi_is_linear_over_the_stored_range(tmp_path: Path) -> None:
    mammogram = load(save(tmp_path / "a.dcm", breast(), VOILUTSequence=three_luts()))
    np.testing.assert_allclose(grey(mammogram, voi="none"), breast() / 4095, atol=1e-6)
    assert not np.allclose(grey(mammogram), grey(mammogram, voi="none"))


def test_a_style_of_the_files_own_lut_takes_the_place_of_the_voi(tmp_path: Path) -> None:
    mammogram = load(save(tmp_path / "a.dcm", breast(), VOILUTSequence=three_luts()))
    styled = grey(mammogram, voi="none", style=parse_style("voi:HARDER"))
    np.testing.assert_array_equal(styled, grey(mammogram, voi="HARDER"))
    with pytest.raises(NoSuchVoi, match="0: NORMAL, 1: HARDER, 2: SOFTER"):
        grey(mammogram, style=parse_style("voi:CRISP"))


def random_lut(entries: int, first: int, seed: int) -> Lut:
    data = np.random.default_rng(seed).integers(0, 4096, (entries,)).astype(np.uint16)
    return Lut(first, 12, data)


lut = st.builds(
    random_lut,
    st.integers(1, 500),
    st.integers(-2000, 2000),
    st.integers(0, 99),
)
window = st.builds(
    Window, st.floats(-3000, 5000), st.floats(1, 5000), st.sampled_from(["LINEAR", "LINEAR_EXACT", "SIGMOID"])
)
rescale = st.builds(Rescale, st.sampled_from([-2.0, 0.5, 1.0]), st.floats(-100, 100))
pipelines = st.builds(
    Pipeline,
    st.integers(8, 12),
    st.booleans(),
    rescale | lut,
    st.tuples(lut | window),
    st.booleans(),
    st.none() | st.just((3, 40)),
)


@settings(deadline=None)
@given(pipelines, st.sampled_from(["default", "none"]), st.sampled_from([NO_STYLE, SIGMOID]))
def test_the_table_is_the_formula_bit_for_bit(pipeline: Pipeline, voi: str, style: Style) -> None:
    half = 2 ** (pipeline.bits - 1)
    low = -half if pipeline.signed else 0
    stored = np.random.default_rng(0).integers(low, low + 2 * half, (9, 7))
    words = stored.astype(np.int16).view(np.uint16)
    table = grey_table(pipeline, 16, voi, style)
    image = look_up(table, words)
    np.testing.assert_array_equal(image, render(stored.astype(np.float64), pipeline, voi, style))
    assert image.min() >= 0
    assert image.max() <= 1


@pytest.mark.parametrize("words", [np.arange(70_000, dtype=np.uint16), np.arange(256, dtype=np.uint8)])
@pytest.mark.parametrize("level", [np.float32, np.uint16])
def test_every_word_finds_its_entry(
    words: NDArray[np.unsignedinteger], level: type[np.float32 | np.uint16]
) -> None:
    words = words.reshape(-1, 8)
    table = (np.random.default_rng(0).random(2 ** (8 * words.itemsize)) * 60_000).astype(level)
    found = look_up(table, words)
    np.testing.assert_array_equal(found, table[words])
    assert found.dtype == level
    found[:] = 0  # the image is the caller's own
    np.testing.assert_array_equal(look_up(table, words[:, ::3]), table[words[:, ::3]])


def test_grey_levels_of_16_bits_are_the_rounded_ones() -> None:
    grey = np.array([0, 0.4 / LEVELS, 0.6 / LEVELS, 0.5, 1], np.float32)
    assert as_words(grey).tolist() == [0, 0, 1, 32768, 65535]


LIES: list[dict[str, Any]] = [
    {"VOILUTSequence": [lut_item(0, CURVE, 12, LUTDescriptor=[99, 0, 12])]},
    {"VOILUTSequence": [lut_item(0, CURVE, 12, LUTDescriptor=[3447, 0, 10])]},
    {"VOILUTSequence": [lut_item(0, CURVE, 12, LUTDescriptor=[3447, 0, 40])]},
    {"VOILUTSequence": [lut_item(0, CURVE, 12, LUTDescriptor=[3447, 0])]},
    {"VOILUTSequence": [lut_item(0, CURVE, 12, LUTData=b"")]},
    {"ModalityLUTSequence": [lut_item(0, CURVE, 12, LUTDescriptor=[0, 0, 12])]},
    {"RescaleSlope": 0, "RescaleIntercept": 0},
    {"WindowCenter": [1, 2], "WindowWidth": 3},
    {"WindowCenter": 1, "WindowWidth": 0},
    {"WindowCenter": 1, "WindowWidth": -5, "VOILUTFunction": "SIGMOID"},
    {"WindowCenter": 1, "WindowWidth": 5, "VOILUTFunction": "CUBIC"},
]


@pytest.mark.parametrize("tags", LIES, ids=range(len(LIES)))
def test_a_lut_or_window_that_lies_raises(tags: dict[str, Any], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = save(tmp_path / "a.dcm", breast(), **tags)
    with pytest.raises(BadLut, match=r"a\.dcm"):
        load(path)
