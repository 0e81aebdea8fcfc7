"""`mammofed simulate`, as a user runs it: files in, files out, one line for each error."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
from numpy.typing import NDArray
from typer.testing import CliRunner

from app.cli import app
from app.commands import simulate as simulate_command
from app.commands.watching import Watching
from app.mnist import mnist_sites, owners, read_idx
from fl_core.models import build_model
from mammofed.errors import BadData, BadSetting, MammofedError


def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    path.write_bytes(gzip.compress(b"\0\0\x08" + bytes([values.ndim]) + sizes + values.tobytes()))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small set in MNIST's own format: bright bars at a place that tells the digit."""
    folder = tmp_path_factory.mktemp("mnist")
    rng = np.random.default_rng(0)
    for part, n in (("train", 240), ("t10k", 120)):
        labels = (np.arange(n) % 10).astype(np.uint8)
        images = rng.integers(0, 60, (n, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 6] += 180
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    return folder


def simulate(*words: object) -> Any:
    return CliRunner().invoke(app, ["simulate", *map(str, words)])


def quick(digits: Path, out: Path, *more: object) -> Any:
    return simulate(
        *("--data", "mnist", "--data-dir", digits, "--model", "densenet-small", "--sites", 2, "--skew", 1.0),
        *("--rounds", 2, "--local-steps", 2, "--batch", 8, "--lr", 0.05, "--workers", 0, "--resamples", 50),
        *("--out", out, *more),
    )


def test_a_run_writes_result_and_model(digits: Path, tmp_path: Path) -> None:
    done = quick(digits, tmp_path / "run", "--algorithm", "bn-scaffold-std")
    assert done.exit_code == 0, done.output
    assert "round 2/2" in done.output
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["configuration"]["algorithm"] == "bn-scaffold-std"
    assert [record["round"] for record in result["rounds"]] == [1, 2]
    assert result["patches"]["site-1"]["train"] == [24] * 5 + [0] * 5
    for metric in ("accuracy", "auc_ovo", "auc_ovr"):
        final = result["final"][metric]
        assert final["low"] <= final["value"] <= final["high"]
    for record in result["rounds"]:
        own = record["test"]["sites"]
        assert own.keys() == {"site-1", "site-2"}
        for accuracy in (part["accuracy"] for part in own.values()):
            assert accuracy["low"] <= accuracy["value"] <= accuracy["high"]
    assert result["versions"]["torch"].startswith("2.13")
    assert result["seconds"] > 0
    tensors = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    build_model("densenet-small", 1, 10, 5).load_state_dict(tensors)


def test_a_run_is_resumed_only_when_asked(digits: Path, tmp_path: Path) -> None:
    assert quick(digits, tmp_path / "run").exit_code == 0
    again = quick(digits, tmp_path / "run")
    assert "--resume" in str(again.exception)
    longer = quick(digits, tmp_path / "run", "--rounds", 3, "--resume")
    assert longer.exit_code == 0, longer.output
    assert quick(digits, tmp_path / "whole", "--rounds", 3).exit_code == 0
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole"))
    assert one == other


def test_a_folder_without_a_run_is_not_gone_on_with(tmp_path: Path) -> None:
    done = simulate("--out", tmp_path / "mistyped", "--resume", "--patches", 40, "--rounds", 1)
    assert isinstance(done.exception, BadSetting)
    assert "holds no run to go on with" in str(done.exception)
    assert not (tmp_path / "mistyped").exists()


def test_a_finished_run_says_that_it_is_finished(digits: Path, tmp_path: Path) -> None:
    assert "finished already" not in quick(digits, tmp_path, "--rounds", 1).stdout
    again = quick(digits, tmp_path, "--rounds", 1, "--resume")
    assert again.exit_code == 0, again.output
    assert "is finished already: all rounds are trained" in again.stdout
    assert "accuracy" in again.stdout


def test_a_run_that_is_stopped_says_how_to_go_on(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ctrl_c(*anything: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Watching, "moment", ctrl_c)
        stopped = quick(digits, tmp_path / "run")
    assert stopped.exit_code == 130
    assert stopped.stderr == "Stopped after round 1 of 2; the same command with --resume goes on.\n"
    assert quick(digits, tmp_path / "run", "--resume").exit_code == 0
    monkeypatch.setattr(simulate_command, "simulate", ctrl_c)
    assert "the same command starts anew" in quick(digits, tmp_path / "other").stderr


def test_worker_processes_are_silent_at_ctrl_c(tmp_path: Path) -> None:
    words = ["--rounds", "999", "--patches", "40", "--image-size", "32", "--local-steps", "1", "--resamples", "9"]
    command = [sys.executable, "-m", "app.cli", "simulate", *words, "--workers", "2", "--out", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("round 1/999")
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == 130
    assert said.startswith("Stopped after round ")
    assert len(said.splitlines()) == 1


def test_private_rows_write_one_model_a_site(digits: Path, tmp_path: Path) -> None:
    assert quick(digits, tmp_path, "--algorithm", "fedbn").exit_code == 0
    names = {path.name for path in tmp_path.glob("*.safetensors")}
    assert names == {"model.safetensors", "model.site-1.safetensors", "model.site-2.safetensors"}
    result = json.loads((tmp_path / "result.json").read_text())
    assert set(result["final"]["site_models"]) == {"site-1", "site-2"}


def test_a_run_that_diverges_says_so_and_keeps_its_result(digits: Path, tmp_path: Path) -> None:
    done = quick(digits, tmp_path, "--lr", "1e30", "--rounds", 30, "--evaluate-every", 100)
    assert "not finite" in str(done.exception)
    result = json.loads((tmp_path / "result.json").read_text())
    assert "not finite" in result["error"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--algorithm", "fedsgd"], "choose one of"),
        (["--model", "vgg"], "choose one of"),
        (["--data", "cifar"], "choose one of"),
        (["--data", "mnist"], "--data-dir"),
        (["--data", "mnist", "--data-dir", "nowhere"], "IDX files"),
        (["--device", "tpu"], "no such device"),
        (["--skew", "0.2"], "skew"),
        (["--algorithm", "scaffold", "--momentum", "0.9"], "inflate"),
    ],
)
def test_bad_input_is_one_clear_line(words: list[str], reason: str, tmp_path: Path) -> None:
    done = simulate(*words, "--out", tmp_path / "run", "--workers", 0, "--patches", 40)
    assert isinstance(done.exception, MammofedError)
    assert reason in str(done.exception)


def test_label_skew_sends_digits_home_with_probability_p() -> None:
    labels = np.repeat(np.arange(10), 2000)
    owner = owners(labels, 2, 0.8, np.random.default_rng(0))
    home = np.where(labels < 5, 0, 1)
    assert (owner == home).mean() == pytest.approx(0.8, abs=0.01)
    five = owners(labels, 5, 1.0, np.random.default_rng(0))
    assert [sorted(set(labels[five == site])) for site in range(5)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_sites_share_out_all_images(digits: Path) -> None:
    sites = mnist_sites(digits, 5, 0.6, seed=1)
    assert sum(len(train.labels) for train, _ in sites) == 240
    assert sum(len(test.labels) for _, test in sites) == 120


@pytest.mark.parametrize("data", [b"", b"\0\0\x08\x01\0\0\0\x09abc", b"\x89PNG\r\n"])
def test_a_file_that_is_no_idx_raises(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes(data)
    with pytest.raises(BadData, match="IDX"):
        read_idx(path)
