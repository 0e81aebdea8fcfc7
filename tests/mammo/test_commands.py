"""`mammofed patches` and `mammofed inspect` from the outside: output, files, exit codes."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from app.commands.inspect import inspect
from app.commands.patches import patches
from mammo.errors import BadAnnotation, BadStore
from mammo.store import open_store
from mammofed.errors import BadSetting, CannotWrite, MammofedError
from tests.mammo.files import breast, save
from tests.mammo.test_annotations import cbis_folder
from tests.mammo.test_sources import class_folder
from tests.mammo.test_store import annotated_folder

app = typer.Typer()
app.command()(patches)
app.command()(inspect)


def run(*words: object) -> Result:
    """Run a command; an error of ours stays what it is."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, MammofedError):
        raise result.exception
    return result


def test_patches_makes_a_store_and_says_what_is_in_it(tmp_path: Path) -> None:
    annotated_folder(tmp_path / "in", 5)
    (tmp_path / "in" / "3.dcm").write_bytes(b"")
    words = ("--patch", 32, "--per-lesion", 4, "--style", "sigmoid:0.5:0.25", "--p", 0.5, "--workers", 1)
    result = run("patches", tmp_path / "in", "--out", tmp_path / "out", *words)
    assert result.exit_code == 0, result.output
    assert "32 patches of 4 images" in result.stdout
    assert "refused 3.dcm: NotDicom: the file is empty" in result.stderr
    assert "patches: 5 of 5" in result.stderr
    assert open_store(tmp_path / "out").read(np.array([0])).shape == (1, 1, 32, 32)
    again = run("patches", tmp_path / "in", "--out", tmp_path / "out", *words)
    assert again.stdout == result.stdout
    with pytest.raises(BadSetting, match="other settings"):
        run("patches", tmp_path / "in", "--out", tmp_path / "out", "--patch", 64)


def test_patches_that_are_stopped_say_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ctrl_c(*anything: object) -> None:
        raise KeyboardInterrupt

    annotated_folder(tmp_path / "in", 1)
    monkeypatch.setattr("app.commands.patches.build_store", ctrl_c)
    stopped = run("patches", tmp_path / "in", "--out", tmp_path / "out")
    assert (stopped.exit_code, stopped.stderr) == (130, "Stopped; the same command goes on.\n")


def test_nothing_usable_names_the_reasons_and_binds_to_no_settings(tmp_path: Path) -> None:
    annotated_folder(tmp_path / "in", 1)
    whole = (tmp_path / "in" / "0.dcm").read_bytes()
    (tmp_path / "in" / "0.dcm").write_bytes(b"")
    words = ("patches", tmp_path / "in", "--out", tmp_path / "out", "--workers", 1, "--per-lesion", 4)
    with pytest.raises(BadStore, match=r"0\.dcm: the file is empty"):
        run(*words)
    with pytest.raises(BadSetting, match="not finished"):
        run("inspect", tmp_path / "out")
    (tmp_path / "in" / "0.dcm").write_bytes(whole)
    assert "8 patches" in run(*words, "--patch", 32).stdout
    with pytest.raises(BadSetting, match="no folder"):
        run("patches", tmp_path / "nowhere", "--out", tmp_path / "other")


def test_patches_reads_cbis_ddsm_as_it_is(tmp_path: Path) -> None:
    cbis_folder(tmp_path / "in")
    words = ("--patch", 16, "--per-lesion", 4, "--workers", 1)
    result = run("patches", tmp_path / "in", "--out", tmp_path / "out", *words)
    classes = {row["class"] for row in open_store(tmp_path / "out").rows}
    assert classes == {"background", "mass_benign", "mass_malignant", "calc_benign"}, result.output


def test_mixed_intents_are_never_silent(tmp_path: Path) -> None:
    annotated_folder(tmp_path / "in", 2)
    save(tmp_path / "in" / "1.dcm", breast(200, 150), PresentationIntentType="FOR PROCESSING")
    result = run("patches", tmp_path / "in", "--out", tmp_path / "out", "--patch", 32, "--workers", 1)
    assert "for processing and for presentation are mixed" in result.stderr
    assert run("inspect", tmp_path / "out").exit_code == 1


def test_patches_without_a_table_raises(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="--csv"):
        run("patches", tmp_path, "--out", tmp_path / "out")
    with pytest.raises(BadSetting, match="by class"):
        run("patches", class_folder(tmp_path / "classes"), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_table_of_another_kind_in_the_folder_is_left(tmp_path: Path) -> None:
    annotated_folder(tmp_path / "in", 4)
    (tmp_path / "in" / "metadata.csv").write_text("Series UID,Collection\n1.2.3,CBIS-DDSM\n")
    assert run("inspect", tmp_path / "in", "--workers", 1).exit_code == 0


def test_inspect_gives_json_and_its_exit_code(tmp_path: Path) -> None:
    annotated_folder(tmp_path, 4)
    clean = run("inspect", tmp_path, "--json", "--workers", 1)
    assert clean.exit_code == 0
    assert json.loads(clean.stdout)["counts"]["view"] == {"CC": 4}
    save(tmp_path / "b.dcm", breast(), PatientIdentityRemoved=None, PatientName="Secret^Name")
    warned = run("inspect", tmp_path, "--html", tmp_path / "report.html", "--workers", 1)
    assert warned.exit_code == 1
    assert "filled: PatientName" in warned.stdout
    assert "Secret" not in warned.output + (tmp_path / "report.html").read_text()
    for path in tmp_path.glob("*.dcm"):
        path.write_bytes(b"")
    assert run("inspect", tmp_path, "--workers", 1).exit_code == 2


def test_inspect_names_what_it_counts(tmp_path: Path) -> None:
    annotated_folder(tmp_path / "in", 4)
    told = run("inspect", tmp_path / "in", "--workers", 1).stdout
    for line in ("class (lesions; background: images): ", "split (patients): ", "view (files): CC: 4"):
        assert line in told
    assert "LUT (LUTs and windows; none: files): " in told
    run("patches", tmp_path / "in", "--out", tmp_path / "out", "--patch", 32, "--workers", 1)
    assert "class (patches): " in run("inspect", tmp_path / "out").stdout


def test_inspect_tries_places_before_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    annotated_folder(tmp_path, 1)
    monkeypatch.setattr("app.commands.inspect.inspect_folder", pytest.fail)
    with pytest.raises(CannotWrite, match="No such file or directory; name another place"):
        run("inspect", tmp_path, "--html", tmp_path / "nowhere" / "report.html")
    with pytest.raises(BadAnnotation, match=r"no annotation table .*nope\.csv: No such file"):
        run("inspect", tmp_path, "--csv", tmp_path / "nope.csv")


def test_patient_folders_are_no_classes(tmp_path: Path) -> None:
    for name in ("PAT1", "PAT2"):
        save(tmp_path / name / "a.dcm", breast(), PatientIdentityRemoved=None, PatientName="Secret^Name")
    result = run("inspect", tmp_path, "--json", "--workers", 1)
    report = json.loads(result.stdout)
    assert (result.exit_code, report["unit"]) == (1, "files")
    assert report["identity"]["filled: PatientName"] == 2
    told = run("inspect", tmp_path, "--html", tmp_path / "report.html", "--workers", 1)
    for text in (told.stdout, (tmp_path / "report.html").read_text()):
        assert "no patches can be cut before an annotation table is there" in text
        assert "can be used" not in text
    with pytest.raises(BadSetting, match="no annotation table"):
        run("patches", tmp_path, "--out", tmp_path / "out")


def test_inspect_with_a_table_draws_a_gallery_by_class(tmp_path: Path) -> None:
    annotated_folder(tmp_path / "in", 4)
    page = tmp_path / "report.html"
    result = run("inspect", tmp_path / "in", "--html", page, "--workers", 1)
    assert result.exit_code == 0, result.output
    assert all(f"<h3>{name}</h3>" in page.read_text() for name in ("mass_benign", "calc_malignant"))


def test_inspect_reads_stores_and_folders_by_class(tmp_path: Path) -> None:
    class_folder(tmp_path / "classes")
    folder = run("inspect", tmp_path / "classes", "--json")
    assert json.loads(folder.stdout)["counts"]["class"]["calc_malignant"] == 1
    annotated_folder(tmp_path / "in", 4)
    run("patches", tmp_path / "in", "--out", tmp_path / "out", "--patch", 32, "--workers", 1)
    assert run("inspect", tmp_path / "out").exit_code == 0
    with pytest.raises(BadSetting, match="no file or folder"):
        run("inspect", tmp_path / "absent")
