"""Results over REST are what the scores say, recomputed here with scikit-learn; site operators see their own."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from sklearn.metrics import accuracy_score, confusion_matrix, roc_auc_score

from app.client import Coordinator, CoordinatorRefused
from app.coordinator.comparison import Ends, gap_recovered, on_same_data, on_same_patches, p_values
from app.coordinator.db import RunRow
from app.coordinator.results import Scores
from app.schemas.runs import Run
from fl_core.metrics import point_metrics
from tests.app.coordinator.services import SMALL, Service

pytestmark = pytest.mark.xdist_group("results")


def test_predictions_carry_the_headline_of_their_round(lead: Coordinator, run: Run) -> None:
    for which, headline in (("best", run.best), ("last", run.latest)):
        found = lead.predictions(run.id, which)  # type: ignore[arg-type]
        scores, labels = np.array(found.scores), np.array(found.labels)
        assert scores.shape == (100, len(found.classes)) == (100, 5)
        assert headline is not None
        assert headline.accuracy.value == pytest.approx(accuracy_score(labels, scores.argmax(axis=1)))
        assert headline.auc_ovo.value == pytest.approx(roc_auc_score(labels, scores, multi_class="ovo"))


def test_nothing_is_told_of_patches_that_the_sites_withhold(lead: Coordinator, few: Run) -> None:
    assert all(number is None for site in lead.run_sites(few.id) for number in site.test.values())
    found = lead.results(few.id)
    assert (found.n, found.headline.n, found.headline.accuracy.value) == (0, 0, None)
    assert [row.n for row in found.classes] == [0] * 5
    assert lead.predictions(few.id).labels == ()
    assert "| all sites | 0 | – | – | – |" in lead.model_card(few.id)


def test_predictions_are_shuffled_alike_for_runs_on_the_same_data(
    service: Service, lead: Coordinator, run: Run, fedavg: Run
) -> None:
    again, other = lead.predictions(run.id), lead.predictions(fedavg.id)
    assert again.labels == other.labels
    assert again.scores != other.scores
    kept = list((service.home / "runs" / run.id / "objects").iterdir())
    unshuffled = [safetensors.torch.load(path.read_bytes()) for path in kept]
    orders = [part["labels"].tolist() for part in unshuffled if "labels" in part]
    assert orders
    assert all(order != list(again.labels) for order in orders)


def test_results_are_what_the_predictions_say(lead: Coordinator, run: Run) -> None:
    found, predicted = lead.results(run.id), lead.predictions(run.id)
    scores, labels = np.array(predicted.scores), np.array(predicted.labels)
    assert np.array_equal(found.confusion, confusion_matrix(labels, scores.argmax(axis=1), labels=range(5)))
    assert (found.n, found.round, found.headline) == (100, run.best_round, run.best)
    assert (found.headline.n, found.headline.pooled) == (100, True)
    for number, (shown, curve) in enumerate(zip(found.classes, found.one_vs_rest, strict=True)):
        wanted = roc_auc_score(labels == number, scores[:, number])
        assert shown.auc.value == pytest.approx(wanted)
        assert shown.auc.low is not None
        assert shown.auc.high is not None
        assert shown.auc.low < wanted < shown.auc.high
        assert curve.auc == shown.auc
        right = (scores.argmax(axis=1) == number)[labels == number].mean()
        assert shown.sensitivity.value == pytest.approx(right)
        assert curve.name == f"{predicted.classes[number]} against the rest"
    assert len(found.one_vs_one) == 20
    assert np.mean([curve.auc.value or np.nan for curve in found.one_vs_one]) == pytest.approx(
        found.headline.auc_ovo.value
    )
    assert sum(part.n for part in found.calibration) == 100


def test_a_threshold_moves_sensitivity_and_specificity(lead: Coordinator, run: Run) -> None:
    found, predicted = lead.results(run.id, "best", 0.2), lead.predictions(run.id)
    scores, labels = np.array(predicted.scores), np.array(predicted.labels)
    for number, shown in enumerate(found.classes):
        called = scores[:, number] >= 0.2
        assert shown.sensitivity.value == pytest.approx(called[labels == number].mean())
        assert shown.specificity.value == pytest.approx(1 - called[labels != number].mean())
    assert all(shown.sensitivity.value == 1 for shown in lead.results(run.id, "best", 0.0).classes)
    with pytest.raises(CoordinatorRefused, match="threshold"):
        lead.results(run.id, "best", 1.5)


def test_each_site_s_numbers_say_how_many_patches_are_behind_them(lead: Coordinator, run: Run) -> None:
    counted = {site.site: sum(filter(None, site.test.values())) for site in lead.run_sites(run.id)}
    assert {name: own.n for name, own in lead.results(run.id).sites.items()} == counted
    curves = lead.metrics(run.id)
    assert curves.test.n == (100, 100)
    assert {name: own.n for name, own in curves.sites.items()} == {name: (n, n) for name, n in counted.items()}


def test_an_operator_sees_the_own_site_alone(service: Service, lead: Coordinator, run: Run) -> None:
    assert list(lead.results(run.id).sites) == ["hospital-1", "hospital-2"]
    with service.client(service.token("site", "hospital-2")) as operator:
        mine = operator.results(run.id)
    assert mine.sites == {"hospital-2": lead.results(run.id).sites["hospital-2"]}
    assert mine.headline == run.best


def test_a_run_without_an_evaluated_round_has_no_results(lead: Coordinator) -> None:
    draft = lead.create(SMALL)
    for ask in (lead.predictions, lead.results):
        with pytest.raises(CoordinatorRefused, match="no evaluated round") as refused:
            ask(draft.id)
        assert refused.value.problem.status == 404
    assert lead.compare((draft.id,)).runs[0].headline is None


def test_compared_runs_are_paired_on_the_same_patches(
    lead: Coordinator, run: Run, fedavg: Run, another_seed: Run
) -> None:
    found = lead.compare((run.id, fedavg.id))
    assert (found.reference, found.same_data) == (run.id, True)
    first, second = found.runs
    assert set(first.p_value.values()) == {None}
    assert all(p is not None and 0 < p <= 1 for p in second.p_value.values())
    assert lead.compare((run.id, fedavg.id), fedavg.id).runs[0].p_value == second.p_value
    assert (second.headline, second.algorithm) == (fedavg.best, "fedavg")
    mixed = lead.compare((run.id, another_seed.id))
    assert not mixed.same_data
    assert set(mixed.runs[1].p_value.values()) == {None}


def test_a_reference_that_is_not_compared_is_refused(lead: Coordinator, run: Run) -> None:
    with pytest.raises(CoordinatorRefused, match="name one of"):
        lead.compare((run.id,), "0000-nothing")
    with pytest.raises(CoordinatorRefused, match="there is no run"):
        lead.compare((run.id, "0000-nothing"))


def test_studies_are_those_on_disk_and_own_runs(
    lead: Coordinator, run: Run, fedavg: Run, another_seed: Run
) -> None:
    written, *own = lead.studies()
    assert (written.name, written.lines[0].seeds) == ("small", 3)
    assert written.lines[0].headline.auc_ovr.value == 0.7
    lines = {line.algorithm: line for study in own for line in study.lines}
    assert lines["fedavg"].headline == fedavg.latest
    assert [lines[name].seeds for name in ("fedavg", "bn-scaffold-std")] == [1, 2]
    values = [one.latest.accuracy.value or 0 for one in (run, another_seed) if one.latest]
    assert lines["bn-scaffold-std"].headline.accuracy.value == pytest.approx(sum(values) / 2)


def scored(seed: int, skill: float) -> Scores:
    rng = np.random.default_rng(seed)
    labels = np.arange(600) % 3
    odds = np.exp(rng.normal(size=(600, 3)) + skill * np.eye(3)[labels])
    return Scores(labels, odds / odds.sum(axis=1, keepdims=True))


def row(algorithm: str, scores: Scores) -> RunRow:
    found = asdict(point_metrics(scores.scores, scores.labels))
    headline = {name: {"value": found[name]} for name in ("accuracy", "auc_ovo", "auc_ovr")}
    return RunRow(id=algorithm, data_key="same", settings={"algorithm": algorithm}, best={"headline": headline})


def test_the_gap_recovered_is_a_share_of_a_gap_that_is_there_for_sure() -> None:
    skills = {"fedavg": 0.5, "bn-scaffold-std": 1.4, "centralized": 1.6}
    scores: dict[str, Scores | None] = {
        name: scored(seed, skill) for seed, (name, skill) in enumerate(skills.items())
    }
    rows = {name: row(name, found) for name, found in scores.items() if found}
    ends = Ends(rows["fedavg"], rows["centralized"])
    share = gap_recovered(rows["bn-scaffold-std"], ends, scores)["auc_ovo"]
    assert share is not None
    assert 0.6 < share < 1.1
    assert set(gap_recovered(rows["fedavg"], ends, scores).values()) == {0.0}
    backwards = Ends(rows["centralized"], rows["fedavg"])
    assert set(gap_recovered(rows["bn-scaffold-std"], backwards, scores).values()) == {None}


def test_runs_whose_scores_stay_at_the_sites_have_the_same_data_and_no_p_values() -> None:
    here, away = row("fedavg", scored(0, 1.0)), row("scaffold", scored(1, 1.0))
    scores: dict[str, Scores | None] = {"fedavg": scored(0, 1.0), "scaffold": None}
    assert on_same_data(here, away, scores)
    assert not on_same_patches(here, away, scores)
    assert set(p_values(here, away, scores).values()) == {None}
    away.data_key = "other"
    assert not on_same_data(here, away, scores)


def test_damaged_scores_are_never_shown(service: Service, lead: Coordinator, another_seed: Run) -> None:
    folder: Path = service.home / "runs" / another_seed.id / "objects"
    for path in folder.iterdir():
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CoordinatorRefused, match="checksum"):
        lead.predictions(another_seed.id)
