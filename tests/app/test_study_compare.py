"""Comparisons of a study on scores made by hand: gaps, intervals, p-values, tables, memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from app.study.compare import Line, lines_of
from app.study.memory import estimate, jobs_for
from app.study.palette import MARKS
from app.study.plan import Study, read_study, runs_of
from app.study.tables import cell, gap_cell, write_tables
from fl_core.evaluate import Scored, headline
from fl_core.family import ALGORITHMS
from fl_core.intervals import HEADLINES

LABELS = np.tile(np.arange(3), 100)
Scores = NDArray[np.float64]


def scores(skill: float, seed: int = 0) -> Scores:
    """Probabilities that point to the true class the more, the higher the skill."""
    logits = np.random.default_rng(seed).normal(size=(len(LABELS), 3)) + skill * np.eye(3)[LABELS]
    odds = np.exp(logits)
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def record(row: str, seed: int, scored: Scores | None) -> dict[str, Any]:
    final = headline(Scored(scored, LABELS), 200, 0) if scored is not None else None
    return {
        "name": f"{row}-{seed}",
        "row": row,
        "skew": 1.0,
        "local_steps": 10,
        "seed": seed,
        "rounds": 5,
        "status": "finished" if final else "diverged",
        "error": None if final else "not finite",
        "last_round": 5 if final else 3,
        "final": final,
    }


def compared(models: Mapping[tuple[str, int], Scores | None], against: str = "bn-scaffold-std") -> dict[str, Line]:
    """The lines of accuracy, by row."""
    rows = tuple(dict.fromkeys(row for row, _ in models))
    seeds = tuple(dict.fromkeys(seed for _, seed in models))
    study = Study(rows, seeds=seeds, resamples=200, against=against)
    records = [record(row, seed, found) for (row, seed), found in models.items()]
    read = {f"{row}-{seed}": found for (row, seed), found in models.items() if found is not None}
    lines = lines_of(study, records, lambda name: {"labels": LABELS.astype(np.float64), "scores": read[name]})
    return {line.label: line for line in lines if line.metric == "accuracy"}


def test_a_twin_of_centralized_recovers_all_of_the_gap_and_one_of_fedavg_nothing() -> None:
    good, bad = scores(2.5), scores(0.5)
    lines = compared(
        {("centralized", 0): good, ("fedavg", 0): bad, ("scaffold", 0): bad, ("bn-scaffold-std", 0): good}
    )
    whole, none = lines["bn-scaffold-std"], lines["scaffold"]
    assert (whole.gap, whole.gap_low, whole.gap_high) == (1, 1, 1)
    assert (none.gap, none.gap_low, none.gap_high) == (0, 0, 0)
    assert (lines["fedavg"].gap, lines["centralized"].gap) == (None, None)


def test_the_gap_is_that_of_the_definition() -> None:
    lines = compared(
        {("centralized", 0): scores(2.5), ("fedavg", 0): scores(0.5), ("scaffold", 0): scores(1.5, 1)}
    )
    c, f, s = (lines[row].value or 0 for row in ("centralized", "fedavg", "scaffold"))
    found = lines["scaffold"]
    assert found.gap == pytest.approx((s - f) / (c - f))
    assert found.gap_low is not None
    assert found.gap_high is not None
    assert found.gap is not None
    assert found.gap_low < found.gap < found.gap_high


def test_without_a_gap_nothing_is_recovered() -> None:
    lines = compared({("centralized", 0): scores(1.0), ("fedavg", 0): scores(1.0), ("scaffold", 0): scores(2.0)})
    assert lines["scaffold"].gap is None
    assert gap_cell(lines["scaffold"]) == "no gap"


def test_seeds_have_students_interval_and_welchs_p() -> None:
    models = {
        (row, seed): scores(skill, seed)
        for row, skill in (("fedavg", 0.5), ("scaffold", 0.7))
        for seed in range(4)
    }
    lines = compared(models, against="scaffold")
    found = {
        row: [record(row, s, models[row, s])["final"]["accuracy"]["value"] for s in range(4)] for row in lines
    }
    line = lines["fedavg"]
    low, high = stats.t.interval(0.95, 3, np.mean(found["fedavg"]), stats.sem(found["fedavg"]))
    assert (line.value, line.low, line.high) == pytest.approx((np.mean(found["fedavg"]), low, high))
    assert line.p_value == pytest.approx(
        stats.ttest_ind(found["fedavg"], found["scaffold"], equal_var=False).pvalue
    )


def test_a_seed_that_diverged_is_named_and_not_averaged() -> None:
    lines = compared(
        {("fedavg", 0): scores(1.0), ("fedavg", 1): None, ("scaffold", 0): None, ("scaffold", 1): None}
    )
    assert lines["fedavg"].value == record("fedavg", 0, scores(1.0))["final"]["accuracy"]["value"]
    assert lines["fedavg"].interval == "bootstrap over test patches"
    assert "1 of 2 did not finish" in cell(lines["fedavg"])
    assert lines["fedavg"].note == "seed 1 diverged after round 3 of 5: not finite"
    assert cell(lines["scaffold"]) == "diverged (2 seeds)"


def test_tables_have_rows_down_and_places_across(tmp_path: Path) -> None:
    figures = (1, 1, 0.601, 0.581, 0.621)
    write_tables(tmp_path, [Line("fedavg", "fedavg", 0.8, 10, m, *figures, p_value=0.0005) for m in HEADLINES])
    assert (tmp_path / "accuracy.csv").read_text() == 'row,"p = 0.8, E = 10"\nfedavg,0.601 ± 0.020 (p < 0.001)\n'


def test_presets_mirror_the_paper() -> None:
    runs = {name: runs_of(read_study(None, name, {})) for name in ("heterogeneity", "algorithms", "local-steps")}
    assert {run.data.skew for run in runs["heterogeneity"]} == {0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0}
    assert len(runs["heterogeneity"]) == 5 * 7
    assert [run.plan.algorithm for run in runs["algorithms"]] == list(ALGORITHMS)
    steps = runs["local-steps"]
    assert {run.plan.local_steps for run in steps if run.plan.algorithm == "fedavg"} == {1, 2, 5, 10}
    assert len([run for run in steps if run.plan.algorithm == "centralized"]) == 1
    assert {run.iterations for run in steps} == {400}


def test_every_algorithm_has_a_colour_of_its_own() -> None:
    assert list(MARKS) == list(ALGORITHMS)
    assert len({mark.colour for mark in MARKS.values()}) == len(MARKS)


def test_runs_share_the_machine_by_cores_and_memory() -> None:
    small, large = (
        runs_of(read_study(None, "heterogeneity", {"model": model, "device": "cpu"}))
        for model in ("densenet-small", "densenet121")
    )
    assert estimate(large[0]) > estimate(small[0]) > 0.5e9
    assert estimate(large[0]) > estimate(large[1])  # pooled data have the larger batch
    assert jobs_for(small, cores=2, free=64e9) == 2
    assert jobs_for(small, cores=8, free=2.2 * estimate(small[0])) == 1
    assert jobs_for(small, cores=8, free=1e6) == 1
    assert jobs_for((), cores=8, free=64e9) == 1


def test_sites_that_meet_in_every_layer_take_memory_at_once() -> None:
    rows = {"algorithms": ["fedavg", "fedtan"], "device": "cpu"}
    two, four = (runs_of(read_study(None, "algorithms", {**rows, "sites": sites})) for sites in (2, 4))
    assert estimate(two[1]) > estimate(two[0])
    assert estimate(four[1]) - estimate(two[1]) > estimate(four[0]) - estimate(two[0])
    assert jobs_for(two, cores=2, free=2.2 * estimate(two[0]) / 0.85) == 1
