"""Curves and bins equal scikit-learn's; thinned curves keep their ends, their shape and their exact AUC."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc, roc_auc_score, roc_curve

from fl_core.curves import calibration_bins, roc, roc_curves
from fl_core.metrics import Floats, Ints, calibration_error, point_metrics
from tests.fl_core.test_metrics import scored

CASES = st.builds(
    scored, st.integers(0, 2**32), n=st.integers(8, 90), classes=st.integers(3, 5), levels=st.sampled_from([0, 2])
)


@settings(deadline=None, derandomize=True)
@given(CASES)
def test_roc_points_are_those_of_scikit_learn(case: tuple[Floats, Ints]) -> None:
    scores, labels = case
    for c in range(scores.shape[1]):
        across, up = roc(scores[:, c], labels == c)
        theirs = roc_curve(labels == c, scores[:, c], drop_intermediate=False)
        np.testing.assert_allclose([across, up], theirs[:2], atol=1e-12)


@settings(deadline=None, derandomize=True)
@given(CASES)
def test_aucs_of_curves_are_those_of_scikit_learn_and_their_means_the_headline(case: tuple[Floats, Ints]) -> None:
    scores, labels = case
    rest, pairs = roc_curves(scores, labels)
    assert len(pairs) == scores.shape[1] * (scores.shape[1] - 1)
    for curve in rest:
        wanted = roc_auc_score(labels == curve.positive, scores[:, curve.positive])
        assert curve.auc == pytest.approx(wanted, abs=1e-12)
    for curve in pairs:
        chosen = (labels == curve.positive) | (labels == curve.negative)
        wanted = roc_auc_score(labels[chosen] == curve.positive, scores[chosen, curve.positive])
        assert curve.auc == pytest.approx(wanted, abs=1e-12)
        assert (curve.positives, curve.positives + curve.negatives) == (
            (labels == curve.positive).sum(),
            chosen.sum(),
        )
    found = point_metrics(scores, labels)
    assert np.mean([curve.auc for curve in rest]) == pytest.approx(found.auc_ovr)
    assert np.mean([curve.auc for curve in pairs]) == pytest.approx(found.auc_ovo)


def test_a_thinned_curve_has_at_most_200_points_and_hardly_another_area() -> None:
    scores, labels = scored(1, 20_000, 4)
    for curve in [c for curves in roc_curves(scores, labels) for c in curves]:
        across, up = curve.false_positive_rate, curve.true_positive_rate
        assert 150 < len(across) <= 200
        assert (across[0], up[0], across[-1], up[-1]) == (0, 0, 1, 1)
        assert (np.diff(across) >= 0).all()
        assert (np.diff(up) >= 0).all()
        assert auc(across, up) == pytest.approx(curve.auc, abs=1e-3)


def test_a_class_without_patches_has_an_empty_curve() -> None:
    scores, labels = scored(2, 40, 3)
    kept = labels != 2
    rest, pairs = roc_curves(scores[kept], labels[kept])
    assert (rest[2].auc, len(rest[2].true_positive_rate), rest[2].positives) == (None, 0, 0)
    assert [pair.auc is None for pair in pairs] == [2 in (pair.positive, pair.negative) for pair in pairs]


def test_bins_hold_what_scikit_learn_finds_and_add_up_to_the_calibration_error() -> None:
    scores, labels = scored(3, 900, 4)
    bins = calibration_bins(scores, labels)
    right, confidence = scores.argmax(axis=1) == labels, scores.max(axis=1)
    shares, means = calibration_curve(right, confidence, n_bins=15)
    filled = [found for found in bins if found.n]
    np.testing.assert_allclose([found.accuracy or 0.0 for found in filled], shares)
    np.testing.assert_allclose([found.confidence or 0.0 for found in filled], means)
    gaps = [found.n * abs((found.accuracy or 0) - (found.confidence or 0)) for found in filled]
    assert sum(gaps) / 900 == pytest.approx(calibration_error(scores, labels))
    assert next(found for found in bins if not found.n).confidence is None
