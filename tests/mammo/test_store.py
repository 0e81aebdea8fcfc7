"""A store is whole or absent, continues where it was, and is a patch source that stays on disk."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mammo import store
from mammo.annotations import AnnotatedImage, Annotations, Refused, read_annotations
from mammo.errors import BadStore
from mammo.extract import Extraction, build_store, extract, extract_shard, source_key
from mammo.patches import Sampling
from mammo.style import parse_style
from mammofed.errors import BadSetting
from mammofed.files import held
from tests.mammo.files import breast, save
from tests.mammo.test_annotations import cbis_folder

HOW = Extraction(Sampling(patch=32, per_lesion=6), style=parse_style("sigmoid:0.5:0.25"), p=0.5)
KINDS = ("mass,benign", "mass,malignant", "calc,benign", "calc,malignant")


def annotated_folder(root: Path, images: int = 6) -> Annotations:
    """Boxed lesions of every class, one patient an image."""
    lines = ["path,lesion_id,kind,pathology,x,y,width,height,patient"]
    for i in range(images):
        save(root / f"{i}.dcm", breast(200, 150, seed=i))
        lines.append(f"{i}.dcm,l{i},{KINDS[i % 4]},40,80,30,30,patient{i}")
    (root / "boxes.csv").write_text("\n".join(lines) + "\n")
    return read_annotations(root, [root / "boxes.csv"])


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_store_is_a_patch_source(tmp_path: Path) -> None:
    build_store(annotated_folder(tmp_path / "in"), tmp_path / "out", HOW, workers=1)
    source = store.open_store(tmp_path / "out")
    batch = source.read(np.array([0, 5, 3]))
    assert batch.shape == (3, 1, 32, 32)
    assert batch.dtype == np.float32
    assert 0 <= batch.min() < batch.max() <= 1
    assert source.labels.dtype == np.int64
    assert set(source.labels.tolist()) == {0, 1, 2, 3, 4}
    assert len(source.labels) == len(source.rows) == 6 * 12
    assert isinstance(source.patches, np.memmap)
    assert {row["style"] for row in source.rows} == {"none", "sigmoid:0.5:0.25"}


def test_splits_part_the_patients_and_the_fingerprint(tmp_path: Path) -> None:
    build_store(annotated_folder(tmp_path / "in", 12), tmp_path / "out", HOW, workers=1)
    whole = store.open_store(tmp_path / "out")
    splits = {row["split"] for row in whole.rows}
    parts = {split: store.open_store(tmp_path / "out", split) for split in splits}
    assert sum(len(part.labels) for part in parts.values()) == len(whole.labels)
    patients = [{row["patient"] for row in part.rows} for part in parts.values()]
    assert len(set.union(*patients)) == sum(map(len, patients)) == 12
    assert len({whole.fingerprint, *(part.fingerprint for part in parts.values())}) == 1 + len(parts)
    with pytest.raises(BadStore, match="holdout"):
        store.open_store(tmp_path / "out", "holdout")


def test_two_workers_make_the_same_store_as_one(tmp_path: Path) -> None:
    annotations = annotated_folder(tmp_path / "in")
    build_store(annotations, tmp_path / "one", HOW, workers=1)
    build_store(annotations, tmp_path / "two", HOW, workers=2)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_a_stopped_run_continues_to_the_same_store(tmp_path: Path) -> None:
    annotations = annotated_folder(tmp_path / "in")
    build_store(annotations, tmp_path / "whole", HOW, workers=1)
    out = tmp_path / "stopped"
    store.start(out, HOW.as_row())
    for image in annotations.images[:3]:
        extract_shard((source_key(image), image), out, HOW)
    (out / "shards" / ".half.npy.17.writing").write_bytes(b"half")
    (out / "shards" / "orphan.npy").write_bytes(b"whole patches whose rows were never written")
    torn = out / "shards" / f"{source_key(annotations.images[1])}.npy"
    torn.write_bytes(torn.read_bytes()[:-2] + b"\0\0")  # as a power cut may leave it
    with pytest.raises(BadStore, match="no finished patch store"):
        store.open_store(out)
    seen: list[int] = []
    build_store(annotations, out, HOW, 1, lambda done, total: seen.append(done))
    assert seen == [2, 3, 4, 5, 6]
    assert files_of(out) == files_of(tmp_path / "whole")


def test_one_process_at_a_time_makes_a_store(tmp_path: Path) -> None:
    annotations, out = annotated_folder(tmp_path / "in", 1), tmp_path / "out"
    with held(out, "test"), pytest.raises(BadSetting, match="in use by another mammofed patches"):
        build_store(annotations, out, HOW, workers=1)
    build_store(annotations, out, HOW, workers=1)


KILLED = """
import os, signal, sys
from pathlib import Path
from mammo.annotations import read_annotations
from mammo.extract import build_store
from tests.mammo.test_store import HOW
source, out = Path(sys.argv[1]), Path(sys.argv[2])
def kill_at_3(done, total):
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)
build_store(read_annotations(source, [source / "boxes.csv"]), out, HOW, 1, kill_at_3)
"""


def test_a_killed_process_leaves_nothing_half_written(tmp_path: Path) -> None:
    annotations, out = annotated_folder(tmp_path / "in"), tmp_path / "killed"
    command = [sys.executable, "-c", KILLED, str(tmp_path / "in"), str(out)]
    assert subprocess.run(command, check=False, cwd=Path(__file__).parents[2]).returncode == -signal.SIGKILL
    with pytest.raises(BadStore, match="no finished patch store"):
        store.open_store(out)
    seen: list[int] = []
    build_store(annotations, out, HOW, 1, lambda done, total: seen.append(done))
    assert seen == [3, 4, 5, 6]
    build_store(annotations, tmp_path / "whole", HOW, workers=1)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_added_images_extend_a_finished_store(tmp_path: Path) -> None:
    few, out = annotated_folder(tmp_path / "in", 3), tmp_path / "out"
    before = build_store(few, out, HOW, workers=1)
    old = store.open_store(out)
    old_patches = old.read(np.arange(len(old.labels)))
    for path in (tmp_path / "in").iterdir():
        path.touch()
    seen: list[int] = []
    for name in range(3, 6):
        save(tmp_path / "in" / f"{name}.dcm", breast(200, 150, seed=name))
    lines = [f"{i}.dcm,l{i},{KINDS[i % 4]},40,80,30,30,patient{i}" for i in range(3, 6)]
    with (tmp_path / "in" / "boxes.csv").open("a") as table:
        table.write("\n".join(lines) + "\n")
    more = read_annotations(tmp_path / "in", [tmp_path / "in" / "boxes.csv"])
    after = build_store(more, out, HOW, 1, lambda done, total: seen.append(done))
    new = store.open_store(out)
    np.testing.assert_array_equal(new.read(np.arange(len(old.labels))), old_patches)
    assert before["fingerprint"] != after["fingerprint"]
    assert len(new.labels) == 2 * len(old.labels)
    again: list[int] = []
    build_store(more, out, HOW, 1, lambda done, total: again.append(done))
    assert again == [6]
    assert {path.name.split("-")[0] for path in out.iterdir()} == {
        ".lock",
        "manifest",
        "patches",
        "settings.json",
        "shards",
        "store.json",
    }


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    annotations = annotated_folder(tmp_path / "in", 1)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.tmp").write_text("dear")
    with pytest.raises(BadSetting, match="something else"):
        build_store(annotations, tmp_path / "home", HOW, workers=1)
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letter.tmp"]


def test_other_settings_are_refused(tmp_path: Path) -> None:
    annotations = annotated_folder(tmp_path / "in", 2)
    build_store(annotations, tmp_path / "out", HOW, workers=1)
    with pytest.raises(BadSetting, match="other settings"):
        build_store(annotations, tmp_path / "out", Extraction(Sampling(patch=64)), workers=1)


def test_bad_files_are_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    annotations = annotated_folder(tmp_path / "in")
    (tmp_path / "in" / "2.dcm").write_bytes(b"not DICOM at all" * 20)
    (tmp_path / "in" / "3.dcm").write_bytes((tmp_path / "in" / "4.dcm").read_bytes()[:9000])
    build_store(annotations, tmp_path / "out", HOW, workers=1)
    refused = store.refused_sources(tmp_path / "out")
    assert [(one.name, one.error) for one in refused] == [("2.dcm", "NotDicom"), ("3.dcm", "BadPixels")]
    assert len(store.open_store(tmp_path / "out").labels) == 4 * 12


def test_an_image_without_tissue_is_refused(tmp_path: Path) -> None:
    annotations = annotated_folder(tmp_path / "in", 2)
    save(tmp_path / "in" / "1.dcm", np.zeros((200, 150), np.uint16), PixelPaddingValue=0)
    build_store(annotations, tmp_path / "out", HOW, workers=1)
    (refused,) = store.refused_sources(tmp_path / "out")
    assert "no tissue" in refused.reason


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    annotations = annotated_folder(tmp_path / "in", 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="cannot write"):
        build_store(annotations, tmp_path / "file" / "out", HOW, workers=1)


def test_nothing_usable_makes_no_store(tmp_path: Path) -> None:
    annotations = annotated_folder(tmp_path / "in", 1)
    (tmp_path / "in" / "0.dcm").write_bytes(b"")
    with pytest.raises(BadStore, match="no patch"):
        build_store(annotations, tmp_path / "out", HOW, workers=1)
    assert not store.is_store(tmp_path / "out")


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    index = build_store(annotated_folder(tmp_path / "in", 2), tmp_path / "out", HOW, workers=1)
    store.verify(tmp_path / "out")
    patches = tmp_path / "out" / index["patches"]
    content = bytearray(patches.read_bytes())
    content[-9] ^= 1
    patches.write_bytes(content)
    with pytest.raises(BadStore, match="changed"):
        store.verify(tmp_path / "out")


@pytest.mark.parametrize("damage", ["store.json", "manifest", "patches", "short", "keyless"])
def test_a_damaged_store_raises(damage: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    index = build_store(annotated_folder(tmp_path / "in", 2), out, HOW, workers=1)
    if damage == "store.json":
        (out / "store.json").write_text("{")
    elif damage == "keyless":
        (out / index["manifest"]).write_text("[]\n" * 24)
    elif damage == "short":
        lines = (out / index["manifest"]).read_text().splitlines()
        (out / index["manifest"]).write_text("\n".join(lines[:-1]))
    else:
        (out / index[damage]).write_bytes(b"junk")
    with pytest.raises(BadStore):
        store.open_store(out)


def test_the_key_changes_with_the_annotation(tmp_path: Path) -> None:
    first = annotated_folder(tmp_path / "in", 1).images[0]
    table = tmp_path / "in" / "boxes.csv"
    table.write_text(table.read_text().replace("40,80", "41,80"))
    second = read_annotations(tmp_path / "in", [table]).images[0]
    assert source_key(first) != source_key(second)


def test_the_key_changes_with_patient_and_mask_and_not_with_the_place(tmp_path: Path) -> None:
    image = read_annotations(tmp_path / "in", cbis_folder(tmp_path / "in")).images[0]
    key = source_key(image)
    assert source_key(replace(image, patient="other")) != key
    shutil.copytree(tmp_path / "in", tmp_path / "copy")
    tables = [tmp_path / "copy" / path.name for path in sorted((tmp_path / "in").glob("mass*.csv"))]
    assert source_key(read_annotations(tmp_path / "copy", tables).images[0]) == key
    mask = tmp_path / "in" / "Mass-Training_P_00001_LEFT_CC_2/1.2/3.4/000000.dcm"
    os.utime(mask, ns=(0, 0))
    assert source_key(image) != key


def test_a_file_that_goes_before_it_is_wanted_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    annotations = annotated_folder(tmp_path / "in", 4)
    (tmp_path / "in" / "0.dcm").unlink()

    def remove_another(done: int, total: int) -> None:
        (tmp_path / "in" / "2.dcm").unlink(missing_ok=True)

    build_store(annotations, tmp_path / "out", HOW, 1, remove_another)
    refused = store.refused_sources(tmp_path / "out")
    assert [(one.name, one.error) for one in refused] == [("0.dcm", "NotDicom"), ("2.dcm", "NotDicom")]
    assert {row["source"] for row in store.open_store(tmp_path / "out").rows} == {"1.dcm", "3.dcm"}


def test_a_file_that_changes_while_it_is_wanted_ends_no_run(tmp_path: Path) -> None:
    annotations = annotated_folder(tmp_path / "in", 3)

    def change(done: int, total: int) -> None:
        os.utime(tmp_path / "in" / "2.dcm", ns=(0, done))

    build_store(annotations, tmp_path / "out", HOW, 1, change)
    assert len(store.open_store(tmp_path / "out").labels) == 3 * 12
    seen: list[int] = []
    build_store(annotations, tmp_path / "out", HOW, 1, lambda done, total: seen.append(done))
    assert seen == [2, 3]  # the changed one is cut again


def test_lost_lesions_are_named_in_the_store_also_when_it_is_extended(tmp_path: Path) -> None:
    annotated_folder(tmp_path / "in", 2)
    table = tmp_path / "in" / "boxes.csv"
    table.write_text(table.read_text() + "0.dcm,far,mass,benign,900,900,5,5,patient0\n")
    annotations = read_annotations(tmp_path / "in", [table])
    for _ in range(2):
        build_store(annotations, tmp_path / "out", HOW, workers=1)
        (lost,) = store.refused_sources(tmp_path / "out")
        assert (lost.name, lost.error) == ("0.dcm lesion far", "BadAnnotation")
    rows = [row for row in store.open_store(tmp_path / "out").rows if row["source"] == "0.dcm"]
    assert {row["lesion"] for row in rows} == {"l0"}


def extract_or_die(keyed: tuple[str, AnnotatedImage], folder: Path, how: Extraction) -> tuple[str, Refused | None]:
    """Task of a worker whose decoder dies of one file."""
    if keyed[1].name == "1.dcm":
        os._exit(1)
    return extract_shard(keyed, folder, how)


def test_a_file_that_crashes_its_decoder_ends_no_later_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotations = annotated_folder(tmp_path / "in", 3)
    monkeypatch.setattr("mammo.extract.extract_shard", extract_or_die)
    for _ in range(2):  # the second time nothing else is left to do
        build_store(annotations, tmp_path / "out", HOW, workers=2)
        (refused,) = store.refused_sources(tmp_path / "out")
        assert (refused.name, refused.error) == ("1.dcm", "BadPixels")
    assert len(store.open_store(tmp_path / "out").labels) == 2 * 12


def test_the_manifest_is_plain_json_with_a_pseudonym(tmp_path: Path) -> None:
    annotations = annotated_folder(tmp_path / "in", 1)
    index = build_store(annotations, tmp_path / "out", HOW, workers=1)
    text = (tmp_path / "out" / index["manifest"]).read_text()
    row = json.loads(text.splitlines()[0])
    assert set(row) == {
        *("source", "lesion", "class", "patient", "split", "style", "row", "column", "vendor", "intent")
    }
    assert "patient0" not in text
    assert extract(annotations.images[0], HOW).rows[0] == row
