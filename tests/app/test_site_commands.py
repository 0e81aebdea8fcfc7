"""`mammofed site ...` as a hospital meets it: what is refused, what it says, what it leaves on the disk."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.site.data import SiteSettings, write_settings
from mammofed.errors import BadSetting, MammofedError
from tests.mammo.files import breast, save


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A kit with a key in it, and nothing else that a refused site would need."""
    path = tmp_path / "hospital-1.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("kit.json", json.dumps({"site": "hospital-1"}))
        packed.writestr("startup/client.key", "secret")
    return path


def site(*words: object) -> Any:
    """What a command says; an error of ours stays what it is."""
    done = CliRunner().invoke(app, ["site", *map(str, words)])
    if isinstance(done.exception, MammofedError):
        raise done.exception
    assert done.exit_code == 0, done.output or done.exception
    return done.stdout


def test_a_site_that_is_refused_for_its_data_keeps_no_key(kit: Path, tmp_path: Path) -> None:
    data = "synthetic:1/2,patches=40,size=32"
    with pytest.raises(BadSetting, match="1000 or more are needed"):
        site("join", kit, "--data", data, "--floor", 1000, "--home", tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", ["image.dcm", "patient-1/IM0001"])
def test_mammograms_instead_of_patches_are_refused_with_the_way_to_cut_them(
    name: str, kit: Path, tmp_path: Path
) -> None:
    studies = tmp_path / "studies"
    (studies / name).parent.mkdir(parents=True)
    (studies / "broken-link").symlink_to("nowhere")
    save(studies / name, breast())
    with pytest.raises(BadSetting, match=f"mammofed patches {studies} --out STORE`, then join with --data STORE"):
        site("join", kit, "--data", studies, "--home", tmp_path / "home")


def test_who_leaves_is_told_that_the_kits_file_still_holds_the_key(tmp_path: Path) -> None:
    write_settings(tmp_path, SiteSettings("hospital-1", "synthetic:1/2"))
    assert "still holds the private key: delete that too" in site("leave", "--home", tmp_path)
