"""Tables become images with lesions: every trap of the real CBIS-DDSM files, no patient in two splits."""

from pathlib import Path

import numpy as np
import pytest

from mammo.annotations import CLASSES, Box, find_tables, read_annotations, read_table, split_of
from mammo.errors import BadAnnotation
from mammo.extract import Extraction, extract
from mammo.lesions import find_mask
from mammo.patches import Sampling
from tests.mammo.files import breast, save

MASS_HEADER = (
    "patient_id,breast_density,left or right breast,image view,abnormality id,abnormality type,"
    "mass shape,mass margins,assessment,pathology,subtlety,image file path,cropped image file path,"
    "ROI mask file path\r\n"
)
CALC_HEADER = MASS_HEADER.replace("breast_density", "breast density").replace("mass shape", "calc type")


def cbis_row(patient: str, kind: str, number: int, pathology: str) -> str:
    top = f"{'Mass' if kind == 'mass' else 'Calc'}-Training_{patient}_LEFT_CC"
    return (
        f"{patient},3,LEFT,CC,{number},{kind},ROUND,CLEAR,4,{pathology},4,{top}/1.2.3/4.5.6/000000.dcm,"
        f'{top}_{number}/1.2/3.4/000000.dcm,"{top}_{number}/1.2/3.4/000001.dcm\r\n"\r\n'
    )


def cbis_folder(root: Path, nested: str = "") -> list[Path]:
    """Two patients, three lesions, laid out as the archive does; crop and mask in no fixed order."""
    mass, calc = root / "mass_case_description_train_set.csv", root / "calc_case_description_test_set.csv"
    root.mkdir(exist_ok=True)
    rows = [("P_00001", "mass", 1, "MALIGNANT"), ("P_00001", "mass", 2, "BENIGN_WITHOUT_CALLBACK")]
    mass.write_bytes((MASS_HEADER + "".join(cbis_row(*row) for row in rows)).encode())
    calc.write_bytes((CALC_HEADER + cbis_row("P_00002", "calcification", 1, "BENIGN")).encode())
    for seed, top in enumerate(["Mass-Training_P_00001_LEFT_CC", "Calc-Training_P_00002_LEFT_CC"]):
        save(root / nested / top / "1.2.3/4.5.6/000000.dcm", breast(seed=seed))
        for number in (1, 2) if top.startswith("Mass") else (1,):
            mask = np.zeros((96, 64), np.uint8)
            mask[30 : 30 + 10 * number, 10:25] = 255
            crop = breast(seed=9)[30:50, 10:25]
            places = ["000000.dcm", "000001.dcm"][:: 1 if number == 1 else -1]
            save(root / nested / f"{top}_{number}/1.2/3.4" / places[0], crop)
            save(root / nested / f"{top}_{number}/1.2/3.4" / places[1], mask, bits=8)
    return [mass, calc]


@pytest.mark.parametrize("nested", ["", "CBIS-DDSM"])
def test_cbis_ddsm_is_read_with_all_its_traps(nested: str, tmp_path: Path) -> None:
    annotations = read_annotations(tmp_path, cbis_folder(tmp_path, nested))
    assert not annotations.refused
    first, second = annotations.images
    assert [CLASSES[lesion.label] for lesion in first.lesions] == ["mass_malignant", "mass_benign"]
    assert [CLASSES[lesion.label] for lesion in second.lesions] == ["calc_benign"]
    assert (first.patient, second.patient) == ("P_00001", "P_00002")
    assert first.path.is_file()


def test_cells_and_columns_are_cleaned(tmp_path: Path) -> None:
    mass, calc = (read_table(table)[0] for table in cbis_folder(tmp_path))
    assert mass["roi_mask_file_path"].endswith("/000001.dcm")
    assert mass["breast_density"] == calc["breast_density"] == "3"


def test_a_renamed_download_is_found_by_its_folder(tmp_path: Path) -> None:
    tables = cbis_folder(tmp_path)
    old = tmp_path / "Mass-Training_P_00001_LEFT_CC"
    (old / "1.2.3").rename(old / "08-07-2016-DDSM-NA-30685")
    (old / "08-07-2016-DDSM-NA-30685/4.5.6/000000.dcm").rename(old / "1-1.dcm")
    assert read_annotations(tmp_path, tables).images[0].path == old / "1-1.dcm"


def test_the_mask_is_told_by_its_content(tmp_path: Path) -> None:
    cbis_folder(tmp_path)
    for number in (1, 2):
        mask = find_mask(tmp_path / f"Mass-Training_P_00001_LEFT_CC_{number}", (96, 64))
        assert mask.sum() == 10 * number * 15
    with pytest.raises(BadAnnotation, match="no mask"):
        find_mask(tmp_path / "Mass-Training_P_00001_LEFT_CC_1", (5, 5))


def test_an_unreadable_crop_hides_no_mask(tmp_path: Path) -> None:
    cbis_folder(tmp_path)
    folder = tmp_path / "Mass-Training_P_00001_LEFT_CC_1"
    (folder / "1.2/3.4/000000.dcm").write_bytes(b"")
    assert find_mask(folder, (96, 64)).sum() == 150
    (folder / "1.2/3.4/000001.dcm").write_bytes(b"")
    with pytest.raises(BadAnnotation, match="2 unreadable"):
        find_mask(folder, (96, 64))


def test_cbis_rows_that_point_nowhere_are_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    tables = cbis_folder(tmp_path)
    with tables[0].open("a") as table:
        table.write(cbis_row("P_00009", "mass", 1, "BENIGN") + cbis_row("P_00001", "mass", 1, "UNKNOWN"))
    annotations = read_annotations(tmp_path, tables)
    assert len(annotations.images) == 2
    assert [one.error for one in annotations.refused] == ["BadAnnotation"] * 2
    assert "P_00009" in annotations.refused[0].reason
    assert "UNKNOWN" in annotations.refused[1].reason


def view_in_both_tables(root: Path) -> list[Path]:
    """One view whose mass only the one table knows, and whose calcifications, below it, only the other."""
    tables = [root / "mass.csv", root / "calc.csv"]
    places = {"mass": slice(20, 40), "calcification": slice(48, 76)}
    for table, header, (kind, place) in zip(tables, (MASS_HEADER, CALC_HEADER), places.items(), strict=True):
        table.write_bytes((header + cbis_row("P_00001", kind, 1, "BENIGN")).encode())
        top = root / f"{'Mass' if kind == 'mass' else 'Calc'}-Training_P_00001_LEFT_CC"
        save(top / "1.2.3/4.5.6/000000.dcm", breast())
        mask = np.zeros((96, 64), np.uint8)
        mask[place, 4:40] = 255
        save(root / f"{top.name}_1/1.2/3.4/000001.dcm", mask, bits=8)
    return tables


MANY = Extraction(Sampling(patch=8, per_lesion=100))


def inside(row: dict[str, int], rows: slice) -> float:
    """Share of a patch of 8 pixels that lies in these rows and in columns 4 to 40."""
    high = min(row["row"] + 4, rows.stop) - max(row["row"] - 4, rows.start)
    wide = min(row["column"] + 4, 40) - max(row["column"] - 4, 4)
    return float(max(0, high) * max(0, wide) / 64)


def test_background_keeps_off_lesions_that_only_the_other_table_names(tmp_path: Path) -> None:
    tables = view_in_both_tables(tmp_path)
    (alone,) = read_annotations(tmp_path, tables[:1]).images
    for image, own in zip(read_annotations(tmp_path, tables).images, ("mass_benign", "calc_benign"), strict=True):
        rows = extract(image, MANY).rows
        assert {row["class"] for row in rows} == {"background", own}
        background = [row for row in rows if row["class"] == "background"]
        assert len(background) == 100
        assert all(max(inside(row, slice(20, 40)), inside(row, slice(48, 76))) <= 0.35 for row in background)
    assert any(
        inside(row, slice(48, 76)) > 0.35 for row in extract(alone, MANY).rows
    )  # so the other table matters


@pytest.mark.parametrize("left_out", ["Calc-Training_P_00001_LEFT_CC", "Calc-Training_P_00001_LEFT_CC_1"])
def test_a_lesion_that_is_named_and_not_found_leaves_no_background(left_out: str, tmp_path: Path) -> None:
    tables = view_in_both_tables(tmp_path)
    (tmp_path / left_out).rename(tmp_path / "elsewhere")
    (image,) = read_annotations(tmp_path, tables).images
    assert {row["class"] for row in extract(image, MANY).rows} == {"mass_benign"}


def test_a_mask_of_another_size_leaves_no_background(tmp_path: Path) -> None:
    tables = view_in_both_tables(tmp_path)
    save(tmp_path / "Calc-Training_P_00001_LEFT_CC_1/1.2/3.4/000001.dcm", np.eye(50, dtype=np.uint8), bits=8)
    mass, _ = read_annotations(tmp_path, tables).images
    assert {row["class"] for row in extract(mass, MANY).rows} == {"mass_benign"}


def test_a_lesion_without_mask_costs_itself_and_the_background_alone(tmp_path: Path) -> None:
    tables = cbis_folder(tmp_path)
    lost = tmp_path / "Mass-Training_P_00001_LEFT_CC_2/1.2/3.4"
    for path in lost.iterdir():
        path.unlink()
    image = read_annotations(tmp_path, tables).images[0]
    extracted = extract(image, MANY)
    assert {row["class"] for row in extracted.rows} == {"mass_malignant"}
    (refused,) = extracted.lost
    assert refused.name == "Mass-Training_P_00001_LEFT_CC lesion Mass-Training_P_00001_LEFT_CC_2"
    assert "no mask" in refused.reason


def boxes(root: Path, text: str) -> Path:
    table = root / "boxes.csv"
    table.write_text(text)
    return table


HEADER = "path,lesion_id,kind,pathology,x,y,width,height,patient,split\n"


def test_the_generic_table_gives_boxes(tmp_path: Path) -> None:
    save(tmp_path / "a.dcm", breast())
    save(tmp_path / "b.dcm", breast())
    rows = "a.dcm,1,mass,malignant,10,20,8,6,ann,\na.dcm,2,Calcification,Benign,1,2,3,4,ann,\n"
    rows += "b.dcm,,,,,,,,eve,test\n"
    first, second = read_annotations(tmp_path, [boxes(tmp_path, HEADER + rows)]).images
    assert first.lesions[0].box == Box(10, 20, 8, 6)
    assert [CLASSES[lesion.label] for lesion in first.lesions] == ["mass_malignant", "calc_benign"]
    assert first.split == split_of("ann")
    assert (second.lesions, second.split) == ((), "test")


BAD_ROWS = [
    ("nowhere.dcm,1,mass,benign,1,1,5,5,ann,", "no file"),
    (",1,mass,benign,1,1,5,5,ann,", "no file"),
    ("a.dcm,1,cyst,benign,1,1,5,5,ann,", "cyst"),
    ("a.dcm,1,mass,odd,1,1,5,5,ann,", "odd"),
    ("a.dcm,1,mass,benign,1,one,5,5,ann,", "numbers"),
    ("a.dcm,1,mass,benign,1,1,0,5,ann,", "0 × 5"),
    ("a.dcm,1,mass,benign,1,inf,5,5,ann,", "numbers"),
    ("a.dcm,1,mass,benign,1,1,5,5,ann,holdout", "holdout"),
    ("a.dcm,1,mass,benign,1,1,5,5,bob,test", "same patient"),
    ("c.dcm,1,mass,benign,1,1,5,5,zoe,", "two patients"),
]


@pytest.mark.parametrize(("row", "words"), BAD_ROWS)
def test_a_bad_row_is_refused_and_the_rest_goes_on(row: str, words: str, tmp_path: Path) -> None:
    for name in "abc":
        save(tmp_path / f"{name}.dcm", breast())
    good = "b.dcm,1,mass,benign,1,1,5,5,bob,train\nc.dcm,1,mass,benign,1,1,5,5,cat,\n"
    annotations = read_annotations(tmp_path, [boxes(tmp_path, HEADER + good + row + "\n")])
    assert len(annotations.images) == 2
    (refused,) = annotations.refused
    assert refused.name == "boxes.csv row 4"
    assert words in refused.reason


def test_without_a_patient_column_the_header_is_asked(tmp_path: Path) -> None:
    save(tmp_path / "a.dcm", breast(), PatientID="ann")
    save(tmp_path / "b.dcm", breast(), PatientID="")
    header = HEADER.replace(",patient,split", "")
    table = boxes(tmp_path, header + "a.dcm,1,mass,benign,1,1,5,5\nb.dcm,1,mass,benign,1,1,5,5\n")
    annotations = read_annotations(tmp_path, [table])
    assert [image.patient for image in annotations.images] == ["ann"]
    assert "patient` column" in annotations.refused[0].reason


def test_a_table_of_neither_kind_raises(tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation, match="lesion_id"):
        read_annotations(tmp_path, [boxes(tmp_path, "path,box\na,b\n")])
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00path")
    with pytest.raises(BadAnnotation, match="UTF-8"):
        read_annotations(tmp_path, [tmp_path / "bytes.csv"])


def test_an_unrelated_table_is_left_whatever_it_is_written_in(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("Ärztin,Größe\nMüller,3\n".encode("latin-1"))
    (tmp_path / "b.csv").mkdir()
    table = boxes(tmp_path, "\ufeff" + HEADER + "a.dcm,1,mass,benign,1,1,5,5,ann,\n")
    assert find_tables(tmp_path) == [table]
    table.write_bytes((HEADER + "a.dcm,1,mass,benign,1,1,5,5,Jürgen,\n").encode("latin-1"))
    with pytest.raises(BadAnnotation, match="UTF-8"):  # its lesions are wanted: it is not left in silence
        read_annotations(tmp_path, find_tables(tmp_path))


def test_the_split_depends_on_the_patient_alone() -> None:
    patients = [f"patient{i}" for i in range(5000)]
    before = {patient: split_of(patient) for patient in patients[:100]}
    after = {patient: split_of(patient) for patient in reversed(patients)}
    assert all(after[patient] == split for patient, split in before.items())
    shares = {name: sum(split == name for split in after.values()) / 5000 for name in ("train", "val", "test")}
    assert shares["test"] == pytest.approx(0.2, abs=0.02)
    assert shares["val"] == pytest.approx(0.1, abs=0.02)
