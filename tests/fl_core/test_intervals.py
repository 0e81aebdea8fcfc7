"""Resamples equal scikit-learn on the same patches, intervals cover what they claim, p-values are uniform."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm, ttest_1samp, ttest_ind
from sklearn.metrics import accuracy_score, roc_auc_score

from fl_core.intervals import (
    HEADLINES,
    as_json,
    bootstrap,
    mean_interval,
    paired_p_value,
    resampled_headlines,
    stratified_counts,
    welch,
)
from fl_core.metrics import Floats, Ints, point_metrics, rank
from mammofed.errors import BadData, BadSetting

SEPARATION = 1.0  # of each class's own column from the others, in standard deviations


def binormal(seed: int, sizes: tuple[int, ...]) -> tuple[Floats, Ints]:
    """Independent columns, N(1, 1) for the class itself and N(0, 1) else: each AUC is Φ(1/√2)."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    z = rng.normal(size=(len(labels), len(sizes))) + SEPARATION * np.eye(len(sizes))[labels]
    return norm.cdf(z), labels


def true_accuracy(classes: int) -> float:
    """Probability that the class's own column of `binormal` is the highest."""
    density = quad(lambda x: norm.pdf(x - SEPARATION) * norm.cdf(x) ** (classes - 1), -10, 12)
    return float(density[0])


def softmax(scores: Floats, decimals: int = 16) -> Floats:
    """Rows that add up to 1, as scikit-learn insists; few decimals make ties."""
    odds = np.exp(np.round(norm.ppf(scores), decimals))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def all_counts(labels: Ints, resamples: int, seed: int = 0) -> Ints:
    return np.concatenate(list(stratified_counts(labels, resamples, seed)), axis=1).astype(np.int64)


@pytest.mark.parametrize("decimals", [16, 0])
def test_resamples_are_those_of_scikit_learn(decimals: int) -> None:
    scores, labels = binormal(0, (40, 25, 60, 3, 12))
    scores = softmax(scores, decimals)
    (ours,) = resampled_headlines([rank(scores, labels)], labels, resamples=130, seed=7)
    for r, count in enumerate(all_counts(labels, 130, seed=7).T):
        taken = np.repeat(np.arange(len(labels)), count)
        y, s = labels[taken], scores[taken]
        theirs = [
            accuracy_score(y, s.argmax(axis=1)),
            roc_auc_score(y, s, multi_class="ovo"),
            roc_auc_score(y, s, multi_class="ovr"),
        ]
        np.testing.assert_allclose(ours[:, r], theirs, rtol=0, atol=1e-12)


def test_bounds_are_the_percentiles_of_the_resamples() -> None:
    scores, labels = binormal(1, (30, 30, 30))
    (drawn,) = resampled_headlines([rank(scores, labels)], labels, resamples=500, seed=3)
    found = bootstrap(scores, labels, resamples=500, seed=3, level=0.9)
    for name, row in zip(HEADLINES, drawn, strict=True):
        interval = getattr(found, name)
        assert (interval.low, interval.high) == pytest.approx(np.percentile(row, [5, 95]), abs=1e-12)
        assert interval.value == getattr(point_metrics(scores, labels), name)


def test_each_resample_keeps_the_size_of_each_class() -> None:
    labels = np.array([2, 0, 0, 2, 1, 2, 0, 0])
    counts = all_counts(labels, 200)
    for c, size in enumerate([4, 1, 3]):
        assert (counts[labels == c].sum(axis=0) == size).all()


def test_patches_are_drawn_with_equal_chances() -> None:
    labels = np.repeat([0, 1], [4, 10])
    counts = all_counts(labels, 20_000)
    np.testing.assert_allclose(counts.mean(axis=1), 1, atol=0.04)
    np.testing.assert_allclose(counts.var(axis=1), np.repeat([3 / 4, 9 / 10], [4, 10]), atol=0.04)


def test_a_resample_is_the_same_however_many_are_drawn() -> None:
    labels = np.arange(50) % 3
    assert np.array_equal(all_counts(labels, 300)[:, :77], all_counts(labels, 77))


def test_a_seed_repeats_its_interval_and_another_moves_it() -> None:
    scores, labels = binormal(2, (40, 40))
    assert bootstrap(scores, labels, seed=5) == bootstrap(scores, labels, seed=5)
    assert bootstrap(scores, labels, seed=5) != bootstrap(scores, labels, seed=6)


def test_the_95_percent_interval_covers_the_truth_in_93_to_97_percent() -> None:
    sizes = (200, 100, 100)
    auc = norm.cdf(SEPARATION / np.sqrt(2))
    truth = np.array([true_accuracy(len(sizes)), auc, auc])
    covered = np.zeros(len(HEADLINES))
    for seed in range(1000):
        found = bootstrap(*binormal(seed, sizes), resamples=1000, seed=seed)
        bounds = np.array([[one["low"], one["high"]] for one in as_json(found).values()], dtype=float)
        covered += (bounds[:, 0] <= truth) & (truth <= bounds[:, 1])
    assert ((covered >= 930) & (covered <= 970)).all(), covered


def test_a_missing_class_leaves_the_interval_of_accuracy() -> None:
    scores, labels = binormal(4, (30, 0, 30))
    found = bootstrap(scores, labels)
    assert found.missing == (1,)
    assert as_json(found)["auc_ovo"] == as_json(found)["auc_ovr"] == {"value": None, "low": None, "high": None}
    assert found.accuracy.low is not None
    assert found.accuracy.value == point_metrics(scores, labels).accuracy


def test_a_perfect_model_has_an_interval_of_no_width() -> None:
    labels = np.arange(30) % 3
    found = as_json(bootstrap(np.eye(3)[labels], labels))
    assert all(interval == {"value": 1, "low": 1, "high": 1} for interval in found.values())


def test_the_same_model_differs_from_itself_with_p_1() -> None:
    scores, labels = binormal(5, (30, 30, 30))
    for metric in HEADLINES:
        assert paired_p_value(scores, scores, labels, metric) == 1


def test_a_p_value_is_small_for_a_real_difference_and_never_0() -> None:
    scores, labels = binormal(6, (100, 100, 100))
    chance = np.random.default_rng(0).random(scores.shape)
    for metric in HEADLINES:
        assert paired_p_value(scores, chance, labels, metric, resamples=999) == 1 / 1000


def test_a_p_value_does_not_depend_on_which_model_comes_first() -> None:
    scores, labels = binormal(7, (40, 40, 40))
    other = np.clip(scores + np.random.default_rng(1).normal(size=scores.shape) / 4, 0, 1)
    for metric in HEADLINES:
        forth = paired_p_value(scores, other, labels, metric)
        assert forth == paired_p_value(other, scores, labels, metric)
        assert 0 < forth < 1


def test_equal_models_are_told_apart_in_5_percent_at_the_5_percent_level() -> None:
    told = np.zeros(len(HEADLINES))
    for seed in range(400):
        scores, labels = binormal(seed, (60, 60, 60))
        shared = norm.ppf(scores)
        noise = np.random.default_rng(seed + 10_000).normal(size=(2, *shared.shape)) / 2
        a, b = norm.cdf(shared + noise)
        told += [paired_p_value(a, b, labels, metric, 500, seed) <= 0.05 for metric in HEADLINES]
    assert ((told >= 0.025 * 400) & (told <= 0.08 * 400)).all(), told


def test_p_values_of_undefined_metrics_raise() -> None:
    scores, labels = binormal(8, (20, 0, 20))
    with pytest.raises(BadData, match="every class"):
        paired_p_value(scores, scores, labels, "auc_ovr")
    assert paired_p_value(scores, scores, labels, "accuracy") == 1


def test_settings_out_of_range_raise() -> None:
    scores, labels = binormal(9, (20, 20))
    with pytest.raises(BadSetting, match="resamples 0"):
        bootstrap(scores, labels, resamples=0)
    with pytest.raises(BadSetting, match="level 95"):
        bootstrap(scores, labels, level=95)
    with pytest.raises(BadSetting, match="'auc'"):
        paired_p_value(scores, scores, labels, "auc")  # type: ignore[arg-type]
    with pytest.raises(BadData, match="same patches"):
        paired_p_value(scores, scores[:-1], labels, "accuracy")


@pytest.mark.parametrize("seed", range(5))
def test_welch_is_that_of_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.9, 0.01, size=3), rng.normal(0.88, 0.04, size=5)
    assert welch(a.tolist(), b.tolist()) == pytest.approx(ttest_ind(a, b, equal_var=False).pvalue, abs=1e-12)


def test_welch_without_spread_is_its_limit() -> None:
    assert welch([0.5, 0.5], [0.5, 0.5]) == 1
    assert welch([0.5, 0.5], [0.75, 0.75]) == 0


def test_welch_of_a_single_run_raises() -> None:
    with pytest.raises(BadData, match="1 and 3 runs"):
        welch([0.9], [0.8, 0.7, 0.75])


def test_the_interval_of_one_mean_is_students() -> None:
    values = np.array([1.5, 1.25, 1.75, 1.0, 1.5])
    found = mean_interval(values.mean(), [values.std(ddof=1) / np.sqrt(5)], [1.0], freedom=4)
    assert (found.low, found.high) == pytest.approx(ttest_1samp(values, 0).confidence_interval())


def test_the_interval_of_a_mean_of_two_means_is_welchs() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(1.0, 0.1, size=6), rng.normal(2.0, 0.4, size=6)
    errors = [group.std(ddof=1) / np.sqrt(6) for group in (a, b)]
    found = mean_interval((a.mean() + b.mean()) / 2, errors, [0.5, 0.5], freedom=5)
    welchs = ttest_ind(a, -b, equal_var=False).confidence_interval()  # of the sum
    assert (found.low, found.high) == pytest.approx((welchs.low / 2, welchs.high / 2))


@pytest.mark.parametrize("error", [0.0, 1e-200, 1e9])
def test_no_spread_and_extreme_ones_give_finite_bounds(error: float) -> None:
    found = mean_interval(1.0, [error, 0.0], [0.5, 0.5], freedom=1)
    assert found.low is not None
    assert found.high is not None
    assert -np.inf < found.low <= 1.0 <= found.high < np.inf
