"""Areas and rates class by class: scikit-learn's on the same resamples, and Wilson's published intervals."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score

from fl_core.class_intervals import class_areas, rates, wilson
from fl_core.intervals import stratified_counts
from fl_core.metrics import Floats, Ints


def scored(seed: int, sizes: tuple[int, ...], decimals: int = 16) -> tuple[Floats, Ints]:
    """Probabilities that lean to the true class; few decimals make ties."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    odds = np.exp(np.round(rng.normal(size=(len(labels), len(sizes))) + np.eye(len(sizes))[labels], decimals))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True)), labels


@pytest.mark.parametrize("decimals", [16, 0])
def test_areas_lie_between_the_quantiles_of_scikit_learn(decimals: int) -> None:
    scores, labels = scored(0, (30, 12, 25), decimals)
    found = class_areas(scores, labels, resamples=140, seed=5)
    drawn = np.concatenate(list(stratified_counts(labels, 140, 5)), axis=1)
    taken = [np.repeat(np.arange(len(labels)), count) for count in drawn.T]
    for c in range(3):
        mine, column = labels == c, scores[:, c]
        for area, score in ((found.rest[c], roc_auc_score), (found.precision[c], average_precision_score)):
            theirs = [score(mine[rows], column[rows]) for rows in taken]
            wanted = [score(mine, column), *np.quantile(theirs, [0.025, 0.975])]
            assert [area.value, area.low, area.high] == pytest.approx(wanted)
    pair, both = found.pairs[0][2], labels != 1
    assert pair.value == pytest.approx(roc_auc_score(labels[both] == 0, scores[both, 0]))
    theirs = [roc_auc_score(labels[rows] == 0, scores[rows, 0]) for rows in (t[both[t]] for t in taken)]
    assert [pair.low, pair.high] == pytest.approx(np.quantile(theirs, [0.025, 0.975]))


def test_a_class_without_patches_has_no_area() -> None:
    scores, labels = scored(1, (20, 20, 20))
    found = class_areas(scores[labels != 2], labels[labels != 2], resamples=20)
    assert (found.rest[2].value, found.precision[2].low, found.pairs[0][2].high) == (None, None, None)
    assert found.rest[0].value is not None


@pytest.mark.parametrize(
    ("part", "whole", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_s_interval_is_that_of_newcombe_s_table(part: int, whole: int, low: float, high: float) -> None:
    """Newcombe 1998, table I, method 3."""
    found = wilson(part, whole)
    assert found.value == part / whole
    assert [found.low, found.high] == pytest.approx([low, high], abs=5e-5)
    assert wilson(0, 0).value is None


def test_rates_are_those_of_the_confusion_matrix() -> None:
    rng = np.random.default_rng(2)
    called, positive = rng.random(300) < 0.4, rng.random(300) < 0.3
    cells = confusion_matrix(positive, called)
    sensitivity, specificity = rates(called, positive)
    assert sensitivity.value == pytest.approx(cells[1, 1] / cells[1].sum())
    assert specificity.value == pytest.approx(cells[0, 0] / cells[0].sum())
    assert rates(called, np.zeros(300, bool))[0].value is None
