"""The report says what is wrong, names tags and never values, and its exit code says whether to train."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom import Dataset, dcmread
from pydicom.datadict import dictionary_VR
from pydicom.uid import MPEG2MPML, JPEGLosslessSV1

from mammo.annotations import read_annotations
from mammo.deid import find_identity
from mammo.dicom import Mammogram, load
from mammo.examine import FileFacts, Unusable, Wanted, examine, find_files
from mammo.extract import build_store
from mammo.pool import MAX_DATA, over_cores
from mammo.quality import Report, inspect_folder
from mammo.report import html_page
from mammo.survey import gallery_of, survey_folder, survey_store
from tests.mammo.files import breast, claim, save
from tests.mammo.test_annotations import cbis_folder
from tests.mammo.test_sources import class_folder
from tests.mammo.test_store import HOW, annotated_folder


def report_of(root: Path) -> Report:
    return inspect_folder(root, None, workers=1)[0]


def test_a_clean_folder_is_fine(tmp_path: Path) -> None:
    report = inspect_folder(tmp_path, annotated_folder(tmp_path, 4), workers=1)[0]
    assert (report.exit_code, report.warnings, report.problems) == (0, [], [])
    assert report.counts["vendor"] == {"Acme": 4}
    assert report.counts["transfer syntax"] == {"Explicit VR Little Endian": 4}
    assert sum(report.histograms["Acme"]) > 0


def test_a_folder_without_a_table_is_not_ready_to_be_cut(tmp_path: Path) -> None:
    save(tmp_path / "a.dcm", breast())
    report = report_of(tmp_path)
    (warning,) = report.warnings
    assert (report.exit_code, warning[:19]) == (1, "no annotation table")


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
    assert len(report.warnings) == 7  # the table that is not there included
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
        ("L", "CC", "R", False),
        (None, None, "R", True),
    ],
)
def test_laterality_is_held_against_the_image(
    laterality: str | None, orientation: list[str] | str | None, side: str, fits: bool, tmp_path: Path
) -> None:
    words = breast(side=side)
    path = save(tmp_path / "a.dcm", words, ImageLaterality=laterality, PatientOrientation=orientation)
    facts = examine((path, ()), tmp_path)
    assert getattr(facts, "side_fits", None) is fits


@pytest.mark.parametrize(
    ("view", "laterality", "orientation", "fits"),
    [
        ("MLO", "L", ["A", "FR"], True),
        ("MLO", "R", ["A", "FR"], False),
        ("MLO", "L", ["A", "FL"], False),
        ("MLO", "R", ["A", "HR"], True),  # turned upside down
        ("MLO", "L", ["A", "HR"], False),
        ("MLO", "R", ["A", "F"], True),  # does not tell
        ("CC", "R", ["A", "FR"], True),
        ("SIO", "R", ["A", "FR"], True),
    ],
)
def test_laterality_is_held_against_the_orientation_of_an_oblique_view(
    view: str, laterality: str, orientation: list[str], fits: bool, tmp_path: Path
) -> None:
    tags: dict[str, Any] = {"ViewPosition": view, "ImageLaterality": laterality, "PatientOrientation": orientation}
    facts = examine((save(tmp_path / "a.dcm", breast(), **tags), ()), tmp_path)
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
    assert cleaned.dummies == ("PatientID", "PatientName")  # listed, and no warning
    assert (cleaned.private_tags, cleaned.uid_in_name, cleaned.burned_in) == (1, True, "NO")
    dataset.PatientIdentityRemoved = "NO"
    assert find_identity(dataset, tmp_path / "a.dcm").tags == ("OperatorsName", "PatientID", "PatientName")


def test_a_file_that_is_refused_still_says_whose_it_is(tmp_path: Path) -> None:
    named: dict[str, Any] = {"PatientIdentityRemoved": None, "PatientName": "Secret^Name"}
    save(tmp_path / "ct.dcm", breast(), Modality="CT", **named)
    claim(save(tmp_path / "video.dcm", breast(), JPEGLosslessSV1, **named), MPEG2MPML)
    report = report_of(tmp_path)
    assert report.usable == 0
    assert report.identity["filled: PatientName"] == 2
    assert "files with identifying tags still filled: 2" in report.warnings
    assert "Secret" not in repr(report)


LEFT_BEHIND = """
AcquisitionDeviceProcessingDescription AdmittingDiagnosesCodeSequence DetectorID EthnicGroup LastMenstrualDate
OverlayData PatientSex PregnancyStatus ReferringPhysicianIdentificationSequence ScheduledProcedureStepStartDate
"""


@pytest.mark.parametrize("keyword", LEFT_BEHIND.split())
def test_what_the_basic_profile_removes_is_a_finding(keyword: str, tmp_path: Path) -> None:
    dataset = Dataset()
    if keyword == "OverlayData":
        dataset.add_new(0x60003000, "OW", b"ab")
    else:
        empty = {"SQ": [Dataset()], "US": 1, "DA": "20200101", "CS": "F"}
        dataset.add_new(keyword, dictionary_VR(keyword), empty.get(dictionary_VR(keyword), "filled"))
    assert find_identity(dataset, tmp_path).tags == (keyword,)


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


def test_lesions_that_patches_could_not_locate_are_found_before(tmp_path: Path) -> None:
    annotated_folder(tmp_path, 2)
    table = tmp_path / "boxes.csv"
    table.write_text(table.read_text().replace("1.dcm,l1,mass,malignant,40,80", "1.dcm,l1,mass,malignant,400,80"))
    annotations = read_annotations(tmp_path, [table])
    report, facts = inspect_folder(tmp_path, annotations, workers=1)
    assert [one.name for one in report.refused_rows] == ["1.dcm lesion l1"]
    assert "outside the image" in report.refused_rows[0].reason
    assert report.counts["class"] == {name: int(name == "mass_benign") for name in report.counts["class"]}
    assert "mass_malignant" not in gallery_of(tmp_path, facts, annotations)
    table.write_text(table.read_text().replace("0.dcm,l0,mass,benign,40,80", "0.dcm,l0,mass,benign,400,80"))
    lost = inspect_folder(tmp_path, read_annotations(tmp_path, [table]), workers=1)[0]
    assert lost.exit_code == 2


def test_masks_are_opened_before_patches_need_them(tmp_path: Path) -> None:
    tables = cbis_folder(tmp_path)
    for path in (tmp_path / "Mass-Training_P_00001_LEFT_CC_1/1.2/3.4").iterdir():
        path.write_bytes(b"")
    report = inspect_folder(tmp_path, read_annotations(tmp_path, tables), workers=1)[0]
    assert ["no mask" in one.reason for one in report.refused_rows] == [True]
    assert report.counts["class"]["mass_malignant"] == 0


def test_an_annotated_file_is_examined_wherever_it_lies(tmp_path: Path) -> None:
    save(tmp_path / "elsewhere" / "a.dcm", breast())
    (tmp_path / "in").mkdir()
    header = "path,lesion_id,kind,pathology,x,y,width,height,patient\n"
    (tmp_path / "in" / "boxes.csv").write_text(header + "../elsewhere/a.dcm,1,mass,benign,1,1,9,9,ann\n")
    annotations = read_annotations(tmp_path / "in", [tmp_path / "in" / "boxes.csv"])
    report = inspect_folder(tmp_path / "in", annotations, workers=1)[0]
    assert (report.usable, report.counts["class"]["mass_benign"]) == (1, 1)


def examine_or_die(wanted: Wanted, root: Path) -> FileFacts | Unusable:
    """Task of a worker whose decoder dies of one file."""
    if wanted[0].name == "0.dcm":
        os._exit(1)
    return examine(wanted, root)


def test_a_file_that_crashes_its_decoder_is_not_decoded_for_the_gallery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotations = annotated_folder(tmp_path, 2)
    monkeypatch.setattr("mammo.examine.examine", examine_or_die)
    report, facts = inspect_folder(tmp_path, annotations, workers=2)
    assert [one.name for one in report.unreadable] == ["0.dcm"]
    (tmp_path / "0.dcm").write_bytes(b"")
    monkeypatch.setattr("mammo.extract.load", load_whole)
    assert "mass_malignant" in gallery_of(tmp_path, facts, annotations)


def load_whole(path: Path) -> Mammogram:
    """Load a file that must not be the one which would end this process."""
    assert path.stat().st_size, f"{path} was decoded"
    return load(path)


@pytest.mark.parametrize("shape", [(20, 5000), (5000, 20)])
def test_a_narrow_image_has_a_thumbnail(shape: tuple[int, int], tmp_path: Path) -> None:
    save(tmp_path / "a.dcm", breast(*shape))
    facts = inspect_folder(tmp_path, None, workers=1)[1]
    (picture,) = gallery_of(tmp_path, facts, None)["whole images, view CC"]
    assert min(picture.shape) == 1


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
    assert "<th>class<th>patches" in html_page("store", report, gallery)
    assert report.counts["class"]["background"] == 36
    assert len(gallery["background"]) == 6


def test_dicom_files_of_a_folder_by_class_are_examined_like_any_other(tmp_path: Path) -> None:
    class_folder(tmp_path)
    named: dict[str, Any] = {"PatientIdentityRemoved": None, "PatientName": "Secret^Name"}
    save(tmp_path / "mass_benign" / "named.dcm", breast(side="R"), **named)
    save(tmp_path / "mass_benign" / "ct.dcm", breast(), Modality="CT", **named)
    report = survey_folder(tmp_path, workers=2)[0]
    assert report.counts["vendor"] == {"Acme": 2}
    assert report.counts["class"]["mass_benign"] == 2
    assert report.identity["filled: PatientName"] == 2
    assert report.wrong_side == ["mass_benign/named.dcm"]
    assert [one.name for one in report.unreadable] == ["mass_benign/ct.dcm"]


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


def square_or_hang(number: int) -> int:
    if number == 7:
        signal.pause()
    return number * number


def test_a_worker_that_hangs_takes_one_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mammo.pool.DEADLINE", 2.0)
    results = list(over_cores(square_or_hang, range(10), 2, crashed=lambda number: -number))
    assert sorted(results) == sorted([-7, *(n * n for n in range(10) if n != 7)])


def bytes_at_most(_: int) -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


def test_workers_may_not_ask_for_all_memory() -> None:
    (limit,) = over_cores(bytes_at_most, range(1), 2, crashed=bytes_at_most)
    assert 0 < limit <= MAX_DATA


PROGRAM = """
print(f"imported as {__name__}", flush=True)
from mammo.pool import over_cores
if __name__ == "__main__":
    print(sorted(over_cores(abs, [-2, -1, 3], 2, crashed=abs)))
"""


def test_workers_do_not_import_the_program_that_starts_them(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "imported as __main__\n[1, 2, 3]\n"


PARENT = """
from mammo.pool import over_cores
from tests.mammo.test_quality import tell_and_wait
for _ in over_cores(tell_and_wait, range(2), 2, crashed=print):
    pass
"""


def tell_and_wait(number: int) -> None:
    os.write(1, f"{os.getpid()}\n".encode())  # at once: print writes twice where PYTHONUNBUFFERED is set
    time.sleep(120)


def test_workers_end_with_the_process_that_started_them() -> None:
    command, root = [sys.executable, "-c", PARENT], Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, text=True) as parent:
        assert parent.stdout is not None
        workers = [Path("/proc") / parent.stdout.readline().strip() for _ in range(2)]
        assert all(worker.is_dir() for worker in workers)
        parent.kill()
        assert parent.communicate(timeout=60)[0] == ""  # it ends when no worker holds it any more


def test_histograms_leave_air_out(tmp_path: Path) -> None:
    words = breast()
    report = report_of(save(tmp_path / "a.dcm", words).parent)
    counted = np.array(report.histograms["Acme"])
    assert counted[0] < 0.02 * counted.sum()
