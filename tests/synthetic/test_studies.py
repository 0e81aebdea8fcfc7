"""Synthetic studies are valid mammograms on disk, of all the kinds that the pipeline meets, and of no one."""

import csv
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom import Dataset

from mammofed.errors import BadSetting
from synthetic.lesions import CLASSES
from synthetic.studies import COLUMNS, EMPTY, LUTS, VENDORS, StudySettings, held_out, write_studies

SETTINGS = StudySettings(patients=5, spacing=0.4, test=0.4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("studies")
    assert len(list(write_studies(SETTINGS, out, seed=3))) == 10
    return out


@pytest.fixture(scope="module")
def datasets(folder: Path) -> dict[str, Dataset]:
    return {str(path.relative_to(folder)): pydicom.dcmread(path) for path in sorted(folder.rglob("*.dcm"))}


@pytest.fixture(scope="module")
def annotations(folder: Path) -> list[dict[str, str]]:
    with (folder / "annotations.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_patient_has_two_views(datasets: dict[str, Dataset]) -> None:
    assert len(datasets) == 10
    views = [(name.split("/")[0], ds.ViewPosition) for name, ds in datasets.items()]
    assert len(set(views)) == 10


def test_the_vendors_cover_what_the_pipeline_meets(datasets: dict[str, Dataset]) -> None:
    assert {ds.PhotometricInterpretation for ds in datasets.values()} == {"MONOCHROME1", "MONOCHROME2"}
    syntaxes = {ds.file_meta.TransferSyntaxUID for ds in datasets.values()}
    assert syntaxes == {vendor.syntax for vendor in VENDORS}
    assert {ds.VOILUTFunction for ds in datasets.values()} == {"LINEAR", "SIGMOID"}
    assert {"VOILUTSequence" in ds for ds in datasets.values()} == {True, False}
    assert {"PixelPaddingValue" in ds for ds in datasets.values()} == {True, False}
    assert {"PixelSpacing" in ds for ds in datasets.values()} == {True, False}


def test_all_files_decode_to_twelve_bits(datasets: dict[str, Dataset]) -> None:
    for ds in datasets.values():
        pixels = ds.pixel_array
        assert pixels.shape == (ds.Rows, ds.Columns) == (500, 325)
        assert pixels.max() < 2**12
        assert ds.BitsStored == 12


def test_air_is_the_dark_end_of_either_photometric_interpretation(datasets: dict[str, Dataset]) -> None:
    for ds in datasets.values():
        air = 4095 if ds.PhotometricInterpretation == "MONOCHROME1" else 0
        assert (ds.pixel_array == air).mean() > 0.15
        assert ds.get("PixelPaddingValue", air) == air
        tissue = ds.pixel_array[ds.pixel_array != air]
        assert tissue.min() > 0
        assert tissue.max() < 4095


def test_luts_come_in_three_styles_that_differ(datasets: dict[str, Dataset]) -> None:
    with_luts = [ds for ds in datasets.values() if "VOILUTSequence" in ds]
    assert with_luts
    for ds in with_luts:
        tables = {item.LUTExplanation: np.frombuffer(item.LUTData, "<u2") for item in ds.VOILUTSequence}
        steepest = {name: (table[100:] - table[:-100]).max() for name, table in tables.items()}
        assert steepest.keys() == LUTS.keys()
        assert steepest["SOFTER"] < steepest["NORMAL"] < steepest["HARDER"]


def test_luts_rise_over_all_their_entries(datasets: dict[str, Dataset]) -> None:
    for ds in datasets.values():
        for item in ds.get("VOILUTSequence", []):
            table = np.frombuffer(item.LUTData, "<u2").astype(int)
            assert len(table) == item.LUTDescriptor[0] == 3447
            assert (np.diff(table) >= 0).all()
            assert (table[0], table[-1]) == (0, 4095)


def test_the_lut_of_an_inverted_image_is_the_same_curve(datasets: dict[str, Dataset]) -> None:
    first = {ds.PhotometricInterpretation: ds for ds in datasets.values() if "VOILUTSequence" in ds}
    plain, inverted = (first[name].VOILUTSequence[0] for name in ("MONOCHROME2", "MONOCHROME1"))
    tables = [np.frombuffer(item.LUTData, "<u2").astype(int) for item in (plain, inverted)]
    assert np.abs(4095 - tables[1][::-1] - tables[0]).max() <= 1
    assert plain.LUTDescriptor[1] == 4095 - (inverted.LUTDescriptor[1] + 3446)


def test_headers_carry_no_identity(datasets: dict[str, Dataset]) -> None:
    for ds in datasets.values():
        assert all(not ds.get(keyword) for keyword in EMPTY)
        assert (ds.PatientIdentityRemoved, ds.BurnedInAnnotation) == ("YES", "NO")
        assert not any(element.tag.is_private for element in ds.iterall())
        assert not any(element.VR == "PN" and element.value for element in ds.iterall())
        assert not any(element.VR in ("DA", "TM", "DT") and element.value for element in ds.iterall())


def test_mandatory_attributes_of_a_mammogram_are_filled(datasets: dict[str, Dataset]) -> None:
    for ds in datasets.values():
        assert (ds.Modality, ds.PresentationIntentType) == ("MG", "FOR PRESENTATION")
        assert ds.SOPClassUID.name.startswith("Digital Mammography X-Ray Image Storage")
        for keyword in ("ImageLaterality", "ImagerPixelSpacing", "ViewCodeSequence", "PresentationLUTShape"):
            assert ds[keyword].value
    uids = {ds.SOPInstanceUID for ds in datasets.values()}
    assert len(uids) == len(datasets)
    assert all(uid.is_valid for uid in uids)


def test_annotations_are_the_generic_table(folder: Path, annotations: list[dict[str, str]]) -> None:
    assert tuple(annotations[0]) == COLUMNS
    assert {(row["kind"], row["pathology"]) for row in annotations} == {
        tuple(name.split("_")) for name in CLASSES[1:]
    }
    assert len({row["lesion_id"] for row in annotations}) == len(annotations) == 8
    assert all((folder / row["path"]).is_file() for row in annotations)


def test_boxes_lie_within_the_tissue(datasets: dict[str, Dataset], annotations: list[dict[str, str]]) -> None:
    for row in annotations:
        pixels = datasets[row["path"]].pixel_array
        x, y, width, height = (int(row[name]) for name in ("x", "y", "width", "height"))
        box = pixels[y : y + height, x : x + width]
        assert box.shape == (height, width)
        assert (box > 0).all()
        assert (box < 4095).all()


def test_no_patient_crosses_the_split(annotations: list[dict[str, str]]) -> None:
    splits: dict[str, set[str]] = {}
    for row in annotations:
        splits.setdefault(row["patient"], set()).add(row["split"])
    assert all(len(split) == 1 for split in splits.values())
    assert {"train", "test"} == set.union(*splits.values())


def test_the_test_split_has_all_classes() -> None:
    for seed in range(10):
        tested = held_out(StudySettings(patients=20, test=0.25), seed)
        assert sorted(number % 5 for number in tested) == [0, 1, 2, 3, 4]


def test_a_seed_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    for path in write_studies(SETTINGS, tmp_path, seed=3):
        assert path.read_bytes() == (folder / path.relative_to(tmp_path)).read_bytes()


def test_a_folder_with_files_raises(folder: Path) -> None:
    with pytest.raises(BadSetting, match="not empty"):
        next(write_studies(SETTINGS, folder, seed=0))


@pytest.mark.parametrize("settings", [(0, 0.2, 0.2), (4, 0.2, 1.0), (4, 3.0, 0.2)])
def test_settings_that_cannot_be_written_raise(settings: tuple[int, float, float]) -> None:
    with pytest.raises(BadSetting):
        StudySettings(*settings)
