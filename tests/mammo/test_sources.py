"""A folder of images by class is a patch source as it is; augmentation keeps what a patch shows."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mammo.augment import augment
from mammo.errors import BadPixels
from mammo.folder import is_image_folder, open_folder, read_picture
from mammofed.errors import BadData
from tests.mammo.files import breast, save


def class_folder(root: Path) -> Path:
    """One 8 bit PNG, one 16 bit PNG and one DICOM file of the same picture."""
    words = breast(32, 32, bits=16)
    for name in ("mass_benign", "background", "calc_malignant"):
        (root / name).mkdir(parents=True)
    Image.fromarray((words // 257).astype(np.uint8)).save(root / "background" / "a.png")
    Image.fromarray(words).save(root / "mass_benign" / "b.png")
    save(root / "calc_malignant" / "c.dcm", words, bits=16)
    return root


def test_a_folder_by_class_is_a_patch_source(tmp_path: Path) -> None:
    source = open_folder(class_folder(tmp_path / "in"))
    assert source.classes == ("background", "mass_benign", "mass_malignant", "calc_benign", "calc_malignant")
    assert source.labels.tolist() == [0, 4, 1]
    batch = source.read(np.array([0, 1, 2]))
    assert batch.shape == (3, 1, 32, 32)
    assert batch.dtype == np.float32
    np.testing.assert_allclose(batch[1], batch[2], atol=1e-6)
    np.testing.assert_allclose(batch[0], batch[1], atol=1 / 255)


def test_other_class_names_are_sorted(tmp_path: Path) -> None:
    for name in ("zebra", "ape"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / name / "a.png")
    assert open_folder(tmp_path).classes == ("ape", "zebra")


def test_the_fingerprint_changes_with_a_pixel(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "in")
    before = open_folder(root).fingerprint
    assert open_folder(root).fingerprint == before
    Image.fromarray(np.ones((32, 32), np.uint8)).save(root / "background" / "a.png")
    assert open_folder(root).fingerprint != before


def test_pictures_of_another_size_are_resized_to_the_first(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "in")
    Image.fromarray(np.full((64, 50), 255, np.uint8)).save(root / "mass_benign" / "z.png")
    assert open_folder(root).read(np.array([3])).min() == 1


def test_what_is_no_folder_by_class_raises(tmp_path: Path) -> None:
    assert is_image_folder(class_folder(tmp_path / "in"))
    assert not is_image_folder(tmp_path)
    with pytest.raises(BadData, match="two class folders"):
        open_folder(tmp_path)


def test_folders_of_dicom_files_under_other_names_are_patients_not_classes(tmp_path: Path) -> None:
    for name in ("PAT1", "PAT2"):
        save(tmp_path / name / "a.dcm", breast())
    assert not is_image_folder(tmp_path)
    with pytest.raises(BadData, match="PAT1"):
        open_folder(tmp_path)


def test_a_broken_first_picture_stops_no_folder(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "in")
    (root / "background" / "0.png").write_bytes(b"")
    (root / "background" / "1.png").symlink_to(tmp_path / "nowhere")
    source = open_folder(root)
    assert source.shape == (32, 32)
    assert source.read(np.array([2])).shape == (1, 1, 32, 32)
    with pytest.raises(BadPixels, match=r"0\.png"):
        source.read(np.array([0]))
    for path in source.paths:
        path.unlink()
        path.write_bytes(b"")
    with pytest.raises(BadData, match="none of its 5 pictures"):
        open_folder(root)


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
def test_a_broken_picture_raises(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(BadPixels, match=r"a\.png"):
        read_picture(tmp_path / "a.png")


def test_augmentation_is_a_symmetry_and_a_small_shift() -> None:
    batch = np.random.default_rng(0).random((64, 1, 32, 32), dtype=np.float32)
    out = augment(batch, np.random.default_rng(1))
    assert out.shape == batch.shape
    assert out.dtype == np.float32
    found = set()
    for before, after in zip(batch[:, 0], out[:, 0], strict=True):
        inner = after[8:24, 8:24]
        matches = [
            (turn, flip, down, right)
            for turn in range(4)
            for flip in (False, True)
            for down in range(-2, 3)
            for right in range(-2, 3)
            if np.array_equal(
                np.rot90(before.T if flip else before, turn)[8 + down : 24 + down, 8 + right : 24 + right],
                inner,
            )
        ]
        assert len(matches) == 1
        found.add(matches[0][:2])
    assert len(found) == 8


def test_augmentation_comes_from_the_generator_alone() -> None:
    batch = np.random.default_rng(0).random((9, 1, 16, 16), dtype=np.float32)
    kept = batch.copy()
    first, same = augment(batch, np.random.default_rng(5)), augment(batch, np.random.default_rng(5))
    np.testing.assert_array_equal(first, same)
    np.testing.assert_array_equal(batch, kept)
    assert not np.array_equal(first, augment(batch, np.random.default_rng(6)))


def test_patches_that_are_not_square_stay_upright() -> None:
    batch = np.random.default_rng(0).random((20, 1, 16, 24), dtype=np.float32)
    assert augment(batch, np.random.default_rng(0)).shape == batch.shape
