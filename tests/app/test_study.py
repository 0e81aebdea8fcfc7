"""`mammofed study`, as a user runs it: small studies that really train, a kill on the way, files out."""

import csv
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from app.commands import study as study_command
from app.commands.study import StudyWatching
from app.simulation import Simulation, simulate
from app.study.collect import read_scores
from app.study.plan import Run, read_study, runs_of
from fl_core.intervals import HEADLINES, paired_p_value
from mammofed.errors import BadSetting, MammofedError, TrainingFailed
from mammofed.files import held

app = typer.Typer()
app.command()(study_command.command)

TINY = """
algorithms = ["centralized", "local", "fedavg", "bn-scaffold-std"]
rounds = 3
model = "densenet-small"
image_size = 32
patches = 60
batch = 8
local_steps = 2
resamples = 100

[rows."fedavg, γ 1e30"]
algorithm = "fedavg"
lr = 1e30
"""
ROOT = Path(__file__).parents[2]


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [*map(str, words)])


def read(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "study.json").read_text())
    return found


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def untimed(found: dict[str, Any]) -> dict[str, Any]:
    """All of study.json but how long the runs took."""
    runs = [{key: value for key, value in run.items() if key != "seconds"} for run in found["runs"]]
    return {**found, "runs": runs}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of five rows, one of which diverges, trained to the end."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "tiny.toml").write_text(TINY)
    done = run(folder / "tiny.toml", "--out", folder / "out", "--jobs", 2)
    assert done.exit_code == 0, done.output
    return folder / "out"


def test_a_study_writes_one_json_with_every_run(tiny: Path) -> None:
    found = read(tiny)
    assert found["study"]["name"] == "tiny"
    assert found["versions"]["commit"]
    runs = {record["row"]: record for record in found["runs"]}
    assert list(runs) == ["centralized", "local", "fedavg", "bn-scaffold-std", "fedavg, γ 1e30"]
    for name in ("centralized", "local", "fedavg", "bn-scaffold-std"):
        assert runs[name]["status"] == "finished"
        assert [point["iteration"] for point in runs[name]["curve"]] == [2, 4, 6]
        assert all(set(HEADLINES) <= set(point) for point in runs[name]["curve"])
        assert runs[name]["final"]["accuracy"]["low"] <= runs[name]["final"]["accuracy"]["value"]


def test_a_run_that_diverges_is_a_result(tiny: Path) -> None:
    record = next(record for record in read(tiny)["runs"] if record["row"] == "fedavg, γ 1e30")
    assert record["status"] == "diverged"
    assert "not finite" in record["error"]
    assert record["last_round"] < record["rounds"]
    line = next(line for line in table(tiny / "lines.csv") if line["label"] == "fedavg, γ 1e30")
    assert line["value"] == ""
    assert f"diverged after round {record['last_round']} of 3" in line["note"]
    cells = {row["row"]: row for row in table(tiny / "auc_ovo.csv")}
    assert cells["fedavg, γ 1e30"]["p = 1, E = 2"] == f"diverged after round {record['last_round']} of 3"


def test_local_is_shown_site_by_site_and_by_own_models(tiny: Path) -> None:
    own = "local (own models)"
    labels = [row["row"] for row in table(tiny / "accuracy.csv")]
    assert labels == ["centralized", "local 1", "local 2", own, "fedavg", "bn-scaffold-std", "fedavg, γ 1e30"]
    final = next(record["final"] for record in read(tiny)["runs"] if record["row"] == "local")
    lines = {line["label"]: line for line in table(tiny / "lines.csv") if line["metric"] == "accuracy"}
    models = [final["site_models"][site]["accuracy"]["value"] for site in ("hospital-1", "hospital-2")]
    assert [float(lines[f"local {number}"]["value"]) for number in (1, 2)] == models
    assert float(lines[own]["value"]) == final["accuracy"]["value"]
    assert float(lines[own]["site_models_mean"]) == pytest.approx(np.mean(models))


def test_p_values_of_one_seed_are_paired_on_the_same_patches(tiny: Path) -> None:
    ours, theirs = (read_scores(tiny / f"{row}-p1-E2-seed0") for row in ("fedavg", "bn-scaffold-std"))
    expected = paired_p_value(
        ours["scores"], theirs["scores"], ours["labels"].astype(np.int64), "auc_ovo", resamples=100
    )
    lines = {line["label"]: line for line in table(tiny / "lines.csv") if line["metric"] == "auc_ovo"}
    assert float(lines["fedavg"]["p_value"]) == expected
    assert lines["fedavg"]["test"].startswith("paired bootstrap")
    assert lines["bn-scaffold-std"]["p_value"] == ""


def test_figures_come_as_png_and_svg(tiny: Path) -> None:
    for name in ("rows-p1-E2", "curves-p1-E2"):
        assert (tiny / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tiny / f"{name}.svg").read_text()


def test_the_same_command_trains_nothing_again(tiny: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny.glob("*/result.json")}
    first = read(tiny)
    done = run(tiny.parent / "tiny.toml", "--out", tiny)
    assert "5 finished before" in done.output
    assert {path: path.stat().st_mtime_ns for path in tiny.glob("*/result.json")} == before
    assert read(tiny) == first


def test_other_settings_in_the_same_folder_are_refused(tiny: Path) -> None:
    done = run(tiny.parent / "tiny.toml", "--out", tiny, "--lr", 0.01)
    assert isinstance(done.exception, BadSetting)
    assert "schedule" in str(done.exception)


def test_fewer_rounds_than_were_trained_are_refused(tiny: Path) -> None:
    done = run(tiny.parent / "tiny.toml", "--out", tiny, "--rounds", 2)
    assert "more than 2 rounds" in str(done.exception)


def test_scores_of_a_run_cut_before_its_result_are_taken_again(tiny: Path, tmp_path: Path) -> None:
    whole = tiny / "local-p1-E2-seed0"
    ignored = shutil.ignore_patterns("result.json", "scores.npz", "model*")
    shutil.copytree(whole, tmp_path / "cut", ignore=ignored)
    study = read_study(tiny.parent / "tiny.toml", None, {})
    cut = next(run for run in runs_of(study) if run.row.name == "local")
    simulation = Simulation(cut.plan, cut.data, tmp_path / "cut", 0, 100)
    simulate(simulation, resume=True, watch=lambda moment: None, progress=lambda site, steps: None)
    one, other = ((folder / "scores.npz").read_bytes() for folder in (whole, tmp_path / "cut"))
    assert one == other


def test_a_study_that_is_stopped_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ctrl_c(*anything: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study_command, "run_all", ctrl_c)
    (tmp_path / "tiny.toml").write_text(TINY)
    stopped = run(tmp_path / "tiny.toml", "--out", tmp_path / "out")
    assert (stopped.exit_code, stopped.stderr) == (130, "Stopped; the same command goes on.\n")


def test_two_studies_do_not_share_a_folder(tiny: Path) -> None:
    with held(tiny, "study"):
        done = run(tiny.parent / "tiny.toml", "--out", tiny)
    assert "another study" in str(done.exception)


KILLED_ON_THE_WAY = """
import os, signal, sys
from pathlib import Path
from app.commands.study import StudyWatching, carry_out
from app.study.collect import read_scores
from app.study.plan import read_study

def moved(self, run, iterations):
    if run.row.name == "bn-scaffold-std":
        os.kill(os.getpid(), signal.SIGKILL)

StudyWatching.moved = moved
if __name__ == "__main__":
    carry_out(read_study(Path(sys.argv[1]), None, {}), Path(sys.argv[2]), 1)
"""


def test_a_killed_study_goes_on_to_the_same_results(tiny: Path, tmp_path: Path) -> None:
    file = tiny.parent / "tiny.toml"
    (tmp_path / "killed.py").write_text(KILLED_ON_THE_WAY)
    words = [sys.executable, str(tmp_path / "killed.py"), str(file), str(tmp_path / "cut")]
    killed = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "cut" / "study.json").exists()
    cut = tmp_path / "cut" / "bn-scaffold-std-p1-E2-seed0"
    with (cut / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits for the run's process, which must not outlive the study's
    assert not (cut / "result.json").exists()
    kept = [
        tmp_path / "cut" / "fedavg-p1-E2-seed0" / "result.json",
        cut / "state" / "rounds" / "000001.json",
    ]
    before = [path.stat().st_mtime_ns for path in kept]
    done = run(file, "--out", tmp_path / "cut")
    assert done.exit_code == 0, done.output
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert untimed(read(tmp_path / "cut")) == untimed(read(tiny))


def end_when_started(row: str) -> Callable[[StudyWatching, Run], None]:
    """What a study is told of a started run, with an end by force for the process of one row."""

    def started(watching: StudyWatching, run: Run) -> None:
        if run.row.name == row:
            (process,) = [child for child in multiprocessing.active_children() if child.name == run.name]
            process.kill()  # as the kernel does when memory runs out

    return started


def test_a_run_whose_process_dies_is_missing_until_the_next_command(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (tiny.parent / "tiny.toml", "--out", tmp_path, "--jobs", 2)
    run(*words, "--rounds", 1)
    with monkeypatch.context() as patch:
        patch.setattr(StudyWatching, "started", end_when_started("fedavg"))
        ended = run(*words)
    assert isinstance(ended.exception, TrainingFailed)
    assert "1 of 5 runs have no result (fedavg-p1-E2-seed0)" in str(ended.exception)
    assert "fedavg-p1-E2-seed0: its process ended with code -9" in ended.output
    status = {record["row"]: record["status"] for record in read(tmp_path)["runs"]}
    assert status.pop("fedavg") == "missing"
    assert status.pop("fedavg, γ 1e30") == "diverged"
    assert set(status.values()) == {"finished"}
    gaps = {row["row"]: row["accuracy"] for row in table(tmp_path / "gap-recovered.csv")}
    assert gaps["bn-scaffold-std"] == "no reference"
    first_round = tmp_path / "fedavg-p1-E2-seed0" / "state" / "rounds" / "000001.json"
    before = first_round.stat().st_mtime_ns
    assert run(*words).exit_code == 0
    assert first_round.stat().st_mtime_ns == before
    assert untimed(read(tmp_path)) == untimed(read(tiny))


def test_a_run_that_diverged_does_not_shorten_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    study = read_study(
        None, "heterogeneity", {"algorithms": ["fedavg", "bn-scaffold"], "skews": [1.0], "rounds": 10}
    )
    fedavg, diverging = runs_of(study)
    watching = StudyWatching((fedavg, diverging), (fedavg, diverging), 1)
    monkeypatch.setattr("app.commands.study.time.monotonic", lambda: watching.began + 120)
    watching.moved(diverging, diverging.plan.local_steps)
    watching.ended(diverging, "diverged")
    assert watching.left() == "time left: 20 min"  # one round of ten took two minutes


def test_seeds_are_averaged_and_compared_by_welch(tmp_path: Path) -> None:
    done = run(
        *("--preset", "local-steps", "--algorithms", "centralized,fedavg,bn-scaffold-std", "--local-steps", "1,2"),
        *("--seeds", "0,1", "--rounds", 1, "--image-size", 32, "--patches", 40, "--batch", 8, "--resamples", 50),
        *("--out", tmp_path, "--jobs", 2),
    )
    assert done.exit_code == 0, done.output
    runs = read(tmp_path)["runs"]
    assert len(runs) == 2 * (2 * 2 + 1)
    assert {run["rounds"] * run["local_steps"] for run in runs} == {2}
    lines = [line for line in table(tmp_path / "lines.csv") if line["metric"] == "accuracy"]
    line = next(line for line in lines if (line["label"], line["local_steps"]) == ("fedavg", "1"))
    values = [r["final"]["accuracy"]["value"] for r in runs if (r["row"], r["local_steps"]) == ("fedavg", 1)]
    assert float(line["value"]) == pytest.approx(np.mean(values))
    assert (line["interval"], line["test"]) == ("Student's t over 2 seeds", "Welch between seeds")
    centralized = {line["local_steps"]: line["value"] for line in lines if line["label"] == "centralized"}
    assert centralized["1"] == centralized["2"]
    assert (tmp_path / "metric-by-E-p1.png").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "without algorithms"),
        ("preset = 'fast'", "choose one of"),
        ("algorithms = ['fedsgd']", "choose one of"),
        ("algorithms = ['fedavg', 'fedavg']", "each once"),
        ("algorithms = 'fedavg'\nlearning_rate = 1.0", "'learning_rate'"),
        ("algorithms = 'fedavg'\nrounds = '3'", "a whole number is needed"),
        ("algorithms = 'fedavg'\nrounds = true", "a whole number is needed"),
        ("algorithms = 'fedavg'\nlocal_steps = [2, 3]", "divide"),
        ("algorithms = 'fedavg'\nskews = [0.2]\npatches = 40\nimage_size = 32", "skew"),
        ("algorithms = 'fedavg'\nmomentum = 2.0", "momentum"),
        ("algorithms = 'fedavg'\nagainst = 'fedprox'", "fedprox"),
        ("algorithms = 'fedavg'\nrows = 3", "[rows.NAME]"),
        ("algorithms = 'fedavg'\n[rows.slow]\nlr = 0.1", "algorithm"),
        ("algorithms = 'fedavg'\n[rows.slow]\nalgorithm = 'fedavg'\nmodel = 'resnet18'", "may change"),
        ("algorithms = 'fedavg'\n[rows.FedAvg]\nalgorithm = 'fedavg'", "a name of its own"),
        ("algorithms = [", "cannot be read"),
    ],
)
def test_a_bad_study_file_is_one_clear_line(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(text)
    done = run(tmp_path / "bad.toml", "--out", tmp_path / "out", "--jobs", 1)
    assert isinstance(done.exception, MammofedError), done.output
    assert reason in str(done.exception)


def test_nothing_to_study_is_said(tmp_path: Path) -> None:
    assert "--preset" in str(run("--out", tmp_path).exception)
