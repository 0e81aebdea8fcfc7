"""`mammofed synth` writes what it says."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from app.commands.synth import app, patch_size
from mammofed.errors import BadSetting, CannotWrite
from synthetic.gallery import save_gallery

RUNNER = CliRunner()


def test_studies_writes_files_and_annotations(tmp_path: Path) -> None:
    out = tmp_path / "studies"
    result = RUNNER.invoke(app, ["studies", "--patients", "1", "--spacing", "0.4", "--out", str(out)])
    assert result.exit_code == 0
    assert result.stdout.startswith("2 mammograms of 1 patients")
    assert f"next: mammofed patches {out} --out STORE --patch 32\n" in result.stdout
    assert len(list(out.rglob("*.dcm"))) == 2
    assert (out / "annotations.csv").is_file()


def test_the_next_command_cuts_patches_of_a_lesion_s_size() -> None:
    assert [patch_size(spacing) for spacing in (0.05, 0.1, 0.2, 0.4)] == [256, 128, 64, 32]


def test_gallery_writes_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "gallery.png"
    result = RUNNER.invoke(app, ["gallery", "--size", "32", "--out", str(out)])
    assert result.exit_code == 0
    assert np.asarray(imread(out)).std() > 0.1


def test_a_gallery_of_unknown_format_raises(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"\.png"):
        save_gallery(tmp_path / "gallery.xyz", 0)


def test_a_place_that_takes_nothing_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words in (["gallery", "--size", "16", "--out", "file/g.png"], ["studies", "--out", "file"]):
        result = RUNNER.invoke(app, [*words[:-1], str(tmp_path / words[-1])])
        assert isinstance(result.exception, CannotWrite), words


def test_each_command_explains_itself() -> None:
    for command in ("studies", "gallery"):
        result = RUNNER.invoke(app, [command, "--help"])
        assert result.exit_code == 0
        assert "--seed" in result.stdout
