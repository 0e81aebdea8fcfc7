"""The report says what is wrong, names tags and never values, and its exit code says whether to train."""

import os
from pathlib import Path

import numpy as np
import pytest
from pydicom import Dataset, dcmread

from mammo.annotations import read_annotations
from mammo.deid import find_identity
from mammo.extract import build_store
from mammo.pool import over_cores
from mammo.quality import Report, examine, find_files, inspect_folder
from mammo.report import html_page
from mammo.survey import gallery_of, survey_folder, survey_store
from tests.mammo.files import breast, save
from tests.mammo.test_annotations import cbis_folder
from tests.mammo.test_sources import class_folder
from tests.mammo.test_store import HOW, annotated_folder


def report_of(root: Path) -> Report:
    return inspect_folder(root, None, workers=1)[0]


def test_a_clean_folder_is_fine(tmp_path: Path) -> None:
    for seed in range(3):
        save(tmp_path / f"{seed}.dcm", breast(seed=seed))
    report = report_of(tmp_path)
    assert (report.exit_code, report.warnings, report.problems) == (0, [], [])
    assert report.counts["vendor"] == {"Acme": 3}
    assert report.counts["transfer syntax"] == {"Explicit VR Little Endian": 3}
    assert sum(report.histograms["Acme"]) > 0


def test_each_finding_is_a_warning(tmp_path: Path) -> None:
    save(tmp_path / "a.dcm", breast())
    save(tmp_path / "sub" / "copy.dcm", breast(), ViewPosition="MLO")
    save(tmp_path / "mirrored.dcm", breast(side="R", seed=1))
    save(tmp_path / "named.dcm", breast(seed=2), PatientIdentityRemoved=None, PatientName="Secret^Name")
    save(tmp_path / "burned.dcm", breast(seed=3), BurnedInAnnotation="YES")
    save(tmp_path / "raw.dcm", breast(seed=4), PresentationIntentType="FOR PROCESSING")
    (tmp_path / "broken.dcm").write_bytes(b"DICM")
    (tmp_path / "notes.txt").write_text("not looked at")
    report = report_of(tmp_path)
    assert report.exit_code == 1
    assert len(report.warnings) == 6
    assert report.duplicates == [["a.dcm", "sub/copy.dcm"]]
    assert report.wrong_side == ["mirrored.dcm"]
    assert [one.name for one in report.unreadable] == ["broken.dcm"]
    assert report.identity["filled: PatientName"] == 1
    assert "Secret" not in repr(report)
    assert (report.files, report.usable) == (7, 6)


def test_nothing_readable_cannot_train(tmp_path: Path) -> None:
    save(tmp_path / "ct.dcm", breast(), Modality="CT")
    report = report_of(tmp_path)
    assert report.exit_code == 2
    assert report.unreadable[0].error == "NotMammogram"
    assert report_of(tmp_path / "ct.dcm").exit_code == 2


@pytest.mark.parametrize(
    ("laterality", "orientation", "side", "fits"),
    [
        ("L", None, "L", True),
        ("R", None, "R", True),
        ("R", None, "L", False),
        ("L", ["P", "F"], "R", True),
        ("L", ["A", "F"], "R", False),
        ("R", ["A", "F"], "L", True),
        ("L", ["R", "P"], "R", True),
        (None, None, "R", True),
    ],
)
def test_laterality_is_held_against_the_image(
    laterality: str | None, orientation: list[str] | None, side: str, fits: bool, tmp_path: Path
) -> None:
    words = breast(side=side)
    path = save(tmp_path / "a.dcm", words, ImageLaterality=laterality, PatientOrientation=orientation)
    facts = examine(path, tmp_path)
    assert getattr(facts, "side_fits", None) is fits


def test_identity_is_looked_for_at_every_depth(tmp_path: Path) -> None:
    item = Dataset()
    item.PatientName = "Secret^Name"
    item.OperatorsName = "Other^Name"
    path = save(tmp_path / "1.2.840.113619.2.55.3.1" / "a.dcm", breast(), ReferencedStudySequence=[item])
    dataset = dcmread(path)
    dataset.add_new((0x0009, 0x0010), "LO", "VENDOR")
    cleaned = find_identity(dataset, path)
    assert cleaned.tags == ("OperatorsName",)
    assert (cleaned.private_tags, cleaned.uid_in_name, cleaned.burned_in) == (1, True, "NO")
    dataset.PatientIdentityRemoved = "NO"
    assert find_identity(dataset, tmp_path / "a.dcm").tags == ("OperatorsName", "PatientID", "PatientName")


def test_empty_tags_are_no_finding(tmp_path: Path) -> None:
    path = save(tmp_path / "a.dcm", breast(), InstitutionName="", PatientIdentityRemoved="NO", PatientID="")
    assert find_identity(dcmread(path), path).tags == ()


def test_classes_and_splits_are_counted_from_the_tables(tmp_path: Path) -> None:
    tables = cbis_folder(tmp_path)
    annotations = read_annotations(tmp_path, tables)
    report, facts = inspect_folder(tmp_path, annotations, workers=1)
    assert report.counts["class"] == {
        "background": 0,
        "mass_benign": 1,
        "mass_malignant": 1,
        "calc_benign": 1,
        "calc_malignant": 0,
    }
    assert any("calc_malignant" in warning for warning in report.warnings)
    assert sum(report.counts["split"].values()) == 2
    gallery = gallery_of(tmp_path, facts, annotations)
    assert {"mass_benign", "mass_malignant", "calc_benign"} <= set(gallery)
    assert (report.files, report.usable) == (2, 2)


def test_lesions_of_unreadable_files_do_not_count(tmp_path: Path) -> None:
    annotations = annotated_folder(tmp_path, 2)
    (tmp_path / "0.dcm").write_bytes(b"")
    report = inspect_folder(tmp_path, annotations, workers=1)[0]
    assert (report.counts["class"]["mass_benign"], report.counts["class"]["mass_malignant"]) == (0, 1)
    (tmp_path / "1.dcm").write_bytes(b"")
    save(tmp_path / "2.dcm", breast())
    assert inspect_folder(tmp_path, annotations, workers=1)[0].exit_code == 2


def test_the_same_pixels_in_two_splits_are_named(tmp_path: Path) -> None:
    save(tmp_path / "a.dcm", breast())
    save(tmp_path / "b.dcm", breast())
    header = "path,lesion_id,kind,pathology,x,y,width,height,patient,split\n"
    rows = "a.dcm,1,mass,benign,1,1,9,9,ann,train\nb.dcm,1,mass,benign,1,1,9,9,bob,test\n"
    (tmp_path / "boxes.csv").write_text(header + rows)
    annotations = read_annotations(tmp_path, [tmp_path / "boxes.csv"])
    warnings = inspect_folder(tmp_path, annotations, workers=1)[0].warnings
    assert "groups of the same pixels that cross a split: 1" in warnings


def test_the_page_is_self_contained_and_escaped(tmp_path: Path) -> None:
    save(tmp_path / "a.dcm", breast(), Manufacturer="<script>alert(1)</script>")
    report, facts = inspect_folder(tmp_path, None, workers=1)
    page = html_page("a <b> folder", report, gallery_of(tmp_path, facts, None))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "data:image/png;base64," in page
    assert "http" not in page


def test_a_folder_by_class_and_a_store_have_the_same_report(tmp_path: Path) -> None:
    class_folder(tmp_path / "in")
    (tmp_path / "in" / "background" / "broken.png").write_bytes(b"")
    report, gallery = survey_folder(tmp_path / "in")
    assert report.counts["class"]["background"] == 1
    assert [one.name for one in report.unreadable] == ["background/broken.png"]
    assert (report.exit_code, set(gallery)) == (1, {"background", "mass_benign", "calc_malignant"})
    build_store(annotated_folder(tmp_path / "dicom"), tmp_path / "store", HOW, workers=1)
    report, gallery = survey_store(tmp_path / "store")
    assert report.exit_code == 0
    assert report.counts["class"]["background"] == 36
    assert len(gallery["background"]) == 6


def test_files_are_found_in_a_fixed_order(tmp_path: Path) -> None:
    for name in ("b.dcm", "sub/a", "DICOMDIR", ".hidden", "table.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [str(path.relative_to(tmp_path)) for path in find_files(tmp_path)] == ["b.dcm", "sub/a"]


def square_or_die(number: int) -> int:
    if number == 7:
        os._exit(1)
    return number * number


def test_a_worker_that_dies_takes_one_item() -> None:
    results = list(over_cores(square_or_die, range(10), 2, crashed=lambda number: -number))
    assert sorted(results) == sorted([-7, *(n * n for n in range(10) if n != 7)])


def test_histograms_leave_air_out(tmp_path: Path) -> None:
    words = breast()
    report = report_of(save(tmp_path / "a.dcm", words).parent)
    counted = np.array(report.histograms["Acme"])
    assert counted[0] < 0.02 * counted.sum()
