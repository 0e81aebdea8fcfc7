"""From nothing to a model: synthetic DICOM studies → report → patch stores → two sites with other styles."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from app.cli import app
from app.site.data import SiteSettings, open_site
from app.sources import DataChoice, StyledPatches, sites_from
from fl_core.data import ArrayPatches
from mammo.store import open_store
from mammo.style import parse_style
from mammofed.errors import BadData, BadSetting, MammofedError


def mammofed(*words: object) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code in (0, 1), done.output or done.exception
    return done


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Patches of the synthetic studies of eight patients."""
    folder = tmp_path_factory.mktemp("hospital")
    mammofed("synth", "studies", "--patients", 8, "--spacing", 0.3, "--out", folder / "studies", "--seed", 3)
    report = json.loads(mammofed("inspect", folder / "studies", "--json").stdout)
    assert report["exit_code"] == 0, report
    mammofed("patches", folder / "studies", "--out", folder / "store", "--patch", 32, "--workers", 1)
    return folder / "store"


def test_a_model_is_trained_on_what_the_pipeline_made(store: Path, tmp_path: Path) -> None:
    styled = f"b={store},style=sigmoid:0.4:0.3"
    words = ["--rounds", 2, "--local-steps", 2, "--batch", 8, "--resamples", 50, "--out", tmp_path / "run"]
    mammofed("simulate", "--site", f"a={store}", "--site", styled, "--algorithm", "bn-scaffold", *words)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["classes"] == ["background", "mass_benign", "mass_malignant", "calc_benign", "calc_malignant"]
    assert sum(result["patches"]["a"]["train"]) == len(open_store(store, "train").labels)
    assert result["final"]["accuracy"]["value"] is not None


def test_a_style_is_applied_to_its_site_alone(store: Path) -> None:
    choice = DataChoice(site=(f"a={store}", f"b={store},style=sigmoid:0.4:0.3"))
    plain, styled = (site.train.read(np.arange(5)) for site in sites_from(choice))
    assert not np.array_equal(plain, styled)
    assert styled.min() >= 0
    assert styled.max() <= 1


def test_a_shared_test_set_is_dealt_out_whole(store: Path, tmp_path: Path) -> None:
    for number in range(9):
        path = tmp_path / "folder" / ("one", "two", "three")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 20 * number, np.uint8)).save(path)
    folder = tmp_path / "folder"
    sites = sites_from(DataChoice(site=(f"a={folder}", f"b={folder}"), test=str(folder)))
    dealt = np.concatenate([site.test.read(np.arange(len(site.test.labels)))[:, 0, 0, 0] for site in sites])
    assert sorted(np.round(dealt * 255 / 20)) == list(range(9))
    with pytest.raises(BadSetting, match="no test split"):
        sites_from(DataChoice(site=(f"a={folder}",)))


def test_patches_of_two_sizes_are_not_trained_together(store: Path, tmp_path: Path) -> None:
    mammofed("patches", store.parent / "studies", "--out", tmp_path / "small", "--patch", 16, "--workers", 1)
    with pytest.raises(BadData, match="a has patches of 32 × 32 px, b of 16 × 16 px: cut both alike"):
        sites_from(DataChoice(site=(f"a={store}", f"b={tmp_path / 'small'}")))
    with pytest.raises(BadData, match="a has patches of 32 × 32 px, the test of a of 16 × 16 px: cut both alike"):
        sites_from(DataChoice(site=(f"a={store}",), test=str(tmp_path / "small")))


def test_styled_patches_differ_in_their_fingerprint() -> None:
    source = ArrayPatches(np.zeros((4, 1, 2, 2), np.float32), np.arange(4), tuple("abcd"))
    styles = [parse_style(name) for name in ("none", "sigmoid:0.5:0.2", "sigmoid:0.5:0.3")]
    assert len({StyledPatches(source, style).fingerprint for style in styles}) == 3


@pytest.mark.parametrize("words", ["", "a", "a=", "=x", "a=x,style=voi:NORMAL"])
def test_a_bad_site_raises(words: str) -> None:
    with pytest.raises(BadSetting, match="NAME=PATH"):
        sites_from(DataChoice(site=(words,)))


def test_a_path_that_holds_no_patches_raises(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="neither a patch store"):
        sites_from(DataChoice(site=(f"a={tmp_path}",)))


def test_data_that_are_not_there_or_not_finished_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "begun" / "shards").mkdir(parents=True)
    (tmp_path / "begun" / "settings.json").touch()
    for name, reason in {"absent": "no file or folder", "begun": "no finished patch store"}.items():
        with pytest.raises(MammofedError, match=reason):
            sites_from(DataChoice(site=(f"a={tmp_path / name}",)))
        with pytest.raises(MammofedError, match=reason):
            open_site(SiteSettings("a", str(tmp_path / name)), seed=0)
