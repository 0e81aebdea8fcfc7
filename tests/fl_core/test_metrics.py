"""Metrics equal scikit-learn wherever it is defined; the undefined is None and its class named."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    confusion_matrix,
    recall_score,
    roc_auc_score,
)

from fl_core.evaluate import Evaluation, Scored, report
from fl_core.intervals import as_json, bootstrap
from fl_core.metrics import Floats, Ints, point_metrics, rank, weighted_headline, withhold
from mammofed.errors import BadData


def scored(seed: int, n: int, classes: int, levels: int = 0) -> tuple[Floats, Ints]:
    """Softmax scores that know something of labels holding every class; with `levels`, ties all over."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.concatenate([np.arange(classes), rng.integers(classes, size=n - classes)]))
    logits = rng.normal(size=(n, classes)) + np.eye(classes)[labels]
    if levels:
        logits = np.floor(logits * levels) / levels
    odds = np.exp(logits)
    return odds / odds.sum(axis=1, keepdims=True), labels


CASES = st.builds(
    scored,
    st.integers(0, 2**32),
    n=st.integers(8, 90),
    classes=st.integers(3, 6),
    levels=st.sampled_from([0, 1, 2]),
)


@settings(deadline=None, derandomize=True)
@given(CASES)
def test_mean_aucs_and_accuracy_are_those_of_scikit_learn(case: tuple[Floats, Ints]) -> None:
    scores, labels = case
    found = point_metrics(scores, labels)
    assert found.accuracy == pytest.approx(accuracy_score(labels, scores.argmax(axis=1)), abs=1e-12)
    assert found.auc_ovo == pytest.approx(roc_auc_score(labels, scores, multi_class="ovo"), abs=1e-12)
    assert found.auc_ovr == pytest.approx(roc_auc_score(labels, scores, multi_class="ovr"), abs=1e-12)
    assert found.missing == ()
    assert found.undefined == ""


@settings(deadline=None, derandomize=True)
@given(CASES)
def test_each_class_has_the_figures_of_scikit_learn(case: tuple[Floats, Ints]) -> None:
    scores, labels = case
    found = point_metrics(scores, labels)
    predicted = scores.argmax(axis=1)
    assert np.array_equal(found.confusion, confusion_matrix(labels, predicted, labels=range(scores.shape[1])))
    for c, one in enumerate(found.per_class):
        mine, said = labels == c, predicted == c
        assert one.n == mine.sum()
        assert one.auc == pytest.approx(roc_auc_score(mine, scores[:, c]), abs=1e-12)
        assert one.sensitivity == pytest.approx(recall_score(mine, said), abs=1e-12)
        assert one.specificity == pytest.approx(recall_score(~mine, ~said), abs=1e-12)
        assert one.pr_auc == pytest.approx(average_precision_score(mine, scores[:, c]), abs=1e-12)


def test_float32_scores_and_saturated_softmax_are_those_of_scikit_learn() -> None:
    scores, labels = scored(0, n=500, classes=5)
    sharp = scores.astype(np.float64) ** 60
    saturated = (sharp / sharp.sum(axis=1, keepdims=True)).astype(np.float32)
    assert (saturated == 1).sum() > 10
    found = point_metrics(saturated, labels)
    assert found.auc_ovo == pytest.approx(roc_auc_score(labels, saturated, multi_class="ovo"), abs=1e-12)
    assert found.auc_ovr == pytest.approx(roc_auc_score(labels, saturated, multi_class="ovr"), abs=1e-12)


def test_two_classes_have_one_auc() -> None:
    labels = np.array([0, 0, 1, 1, 1])
    second = np.array([0.125, 0.5, 0.5, 0.25, 0.75])  # pairs won: 2, of three: 1/2 + 0 + 1
    found = point_metrics(np.stack([1 - second, second], axis=1), labels)
    assert found.auc_ovo == found.auc_ovr == pytest.approx((3 + 1.5) / 6)


def test_two_classes_are_ranked_as_scikit_learn_ranks_them_where_rounding_ties() -> None:
    labels = np.array([0, 1, 0, 1])
    second = np.array([1e-18, 2e-18, 3e-18, 4e-18])  # 1 − p is 1 for all of them
    found = point_metrics(np.stack([1 - second, second], axis=1), labels)
    assert found.auc_ovo == found.auc_ovr == pytest.approx(roc_auc_score(labels, second), abs=1e-12)


def test_equal_scores_are_worth_one_half_for_every_class() -> None:
    found = point_metrics(np.full((9, 3), 1 / 3), np.arange(9) % 3)
    assert found.auc_ovo == found.auc_ovr == 0.5
    assert found.accuracy == pytest.approx(1 / 3)  # of equal scores the first class is predicted


def test_a_missing_class_is_named_and_never_half() -> None:
    scores, labels = scored(1, n=60, classes=4)
    kept = labels != 2
    found = point_metrics(scores[kept], labels[kept])
    assert found.auc_ovo is None
    assert found.auc_ovr is None
    assert found.missing == (2,)
    assert found.undefined == "no patches of class 2"
    gone = found.per_class[2]
    assert (gone.n, gone.auc, gone.sensitivity, gone.pr_auc) == (0, None, None, None)
    assert gone.specificity is not None


def test_the_classes_that_are_there_keep_their_figures() -> None:
    scores, labels = scored(1, n=60, classes=4)
    kept = labels != 2
    found = point_metrics(scores[kept], labels[kept])
    assert found.accuracy == accuracy_score(labels[kept], scores[kept].argmax(axis=1))
    for c in (0, 1, 3):
        assert found.per_class[c].auc == pytest.approx(
            roc_auc_score(labels[kept] == c, scores[kept, c]), abs=1e-12
        )


def test_one_class_alone_has_accuracy_and_no_auc() -> None:
    found = point_metrics(np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0, 0]))
    assert found.accuracy == 0.5
    assert found.auc_ovo is found.auc_ovr is found.per_class[0].auc is None
    assert found.per_class[0].specificity is None
    assert found.per_class[0].pr_auc == 1


def test_no_patches_at_all_leave_everything_undefined() -> None:
    found = point_metrics(np.empty((0, 3)), np.empty(0, dtype=np.int64))
    assert found.accuracy is found.auc_ovo is found.auc_ovr is found.calibration_error is None
    assert found.missing == (0, 1, 2)
    assert found.n == 0


def test_calibration_error_of_known_bins() -> None:
    # 0.9 said four times and right twice: off by 0.4; 0.6 said once and right: off by 0.4 the other way.
    top = np.array([0.9, 0.9, 0.9, 0.9, 0.6])
    labels = np.array([0, 0, 1, 1, 0])
    found = point_metrics(np.stack([top, 1 - top], axis=1), labels)
    assert found.calibration_error == pytest.approx(0.4)


def test_bins_of_calibration_are_closed_above() -> None:
    # 0.6 = 9/15 lies in the bin below 0.62: together they would cancel.
    top = np.array([0.6, 0.62])
    found = point_metrics(np.stack([top, 1 - top], axis=1), np.array([0, 1]))
    assert found.calibration_error == pytest.approx((0.4 + 0.62) / 2)


def test_a_calibrated_model_has_little_calibration_error() -> None:
    rng = np.random.default_rng(3)
    top = rng.uniform(0.5, 1, size=100_000)
    labels = (rng.random(top.size) > top).astype(np.int64)
    error = point_metrics(np.stack([top, 1 - top], axis=1), labels).calibration_error
    assert error is not None
    assert error < 0.01


def test_counts_beyond_32_bits_stay_exact() -> None:
    scores, labels = scored(5, n=40, classes=3, levels=1)
    ranking = rank(scores, labels)
    few, many = np.full((40, 1), 1), np.full((40, 1), 50_000)
    np.testing.assert_allclose(weighted_headline(ranking, many), weighted_headline(ranking, few), atol=1e-12)


def test_metrics_become_json() -> None:
    found = point_metrics(*scored(1, n=60, classes=4))
    assert json.loads(json.dumps(asdict(found)))["per_class"][3]["n"] == found.per_class[3].n


@pytest.mark.parametrize("few", [1, 9])
def test_a_class_under_the_floor_looks_the_same_as_an_absent_one(few: int) -> None:
    scores, labels = scored(2, n=400, classes=3)
    rare = np.flatnonzero(labels == 1)
    absent = np.delete(np.arange(400), rare)
    small = np.sort(np.concatenate([absent, rare[:few]]))
    shown, nothing = (withhold(scores[rows], labels[rows]) for rows in (small, absent))
    assert json.dumps(as_json(bootstrap(*shown))) == json.dumps(as_json(bootstrap(*nothing)))
    assert point_metrics(*shown) == point_metrics(*nothing)
    assert as_json(bootstrap(*shown))["auc_ovo"] == {"value": None, "low": None, "high": None}


def test_a_class_at_the_floor_is_shown() -> None:
    scores, labels = scored(2, n=400, classes=3)
    small = np.sort(np.concatenate([np.flatnonzero(labels != 1), np.flatnonzero(labels == 1)[:10]]))
    found = point_metrics(*withhold(scores[small], labels[small]))
    assert found.per_class[1].n == 10
    assert found.auc_ovo is not None


def test_a_site_with_only_small_classes_shows_nothing() -> None:
    scores, labels = scored(2, n=20, classes=3)
    found = as_json(bootstrap(*withhold(scores, labels, floor=30)))
    assert all(bound is None for interval in found.values() for bound in interval.values())


@pytest.mark.parametrize(
    ("scores", "labels", "named"),
    [
        ([[0.5, 0.5]], [0, 1], r"\(1, 2\) with labels \(2,\)"),
        ([0.5, 0.5], [0, 1], r"C ≥ 2"),
        ([[1.0], [1.0]], [0, 0], r"C ≥ 2"),
        ([[3.0, -1.0]], [0], "from -1 to 3"),
        ([[np.nan, 0.5]], [0], "not finite"),
        ([[0.5, 0.5]], [2], "labels from 2 to 2: 0 to 1"),
        ([[0.5, 0.5]], [-1], "labels from -1"),
        ([[0.5, 0.5]], [0.0], "integers are needed"),
        ([[1, 0]], [0], "floats"),
    ],
)
def test_scores_that_are_no_probabilities_of_the_labels_raise(
    scores: list[list[float]], labels: list[int], named: str
) -> None:
    with pytest.raises(BadData, match=named):
        point_metrics(np.array(scores), np.array(labels))


def test_the_report_withholds_small_classes_of_a_site() -> None:
    scores, labels = scored(2, n=400, classes=3)
    rare = np.flatnonzero(labels == 1)
    absent = np.delete(np.arange(400), rare)
    small, none = (Scored(scores[rows], labels[rows]) for rows in (np.append(absent, rare[:9]), absent))
    whole = Scored(scores, labels)
    shown, empty = (report(Evaluation({"a": part, "b": whole}, {}), 50, 0)["sites"] for part in (small, none))
    assert shown == empty
    assert shown["a"]["auc_ovo"]["value"] is None
    assert shown["b"]["auc_ovo"]["value"] is not None
