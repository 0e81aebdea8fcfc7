"""Scores and labels → bootstrap intervals, paired p-values between models, Welch's test between runs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np
from scipy.special import stdtr, stdtrit

from fl_core.metrics import (
    Counts,
    Floats,
    Ints,
    Ranking,
    checked,
    missing_classes,
    number,
    rank,
    weighted_headline,
)
from mammofed.errors import BadData, BadSetting

Headline = Literal["accuracy", "auc_ovo", "auc_ovr"]
HEADLINES: tuple[Headline, ...] = get_args(Headline)  # in the order of `weighted_headline`

BLOCK = 128  # resamples at a time: 4 bytes x 2,000 patches x 128 is the size of a cache


@dataclass(frozen=True)
class Interval:
    """A metric between its bounds; three None where it is undefined."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Intervals:
    """The three headline metrics of one model on one set of patches."""

    accuracy: Interval
    auc_ovo: Interval
    auc_ovr: Interval
    missing: tuple[int, ...]  # classes without a patch: why an AUC is None


def bootstrap(
    scores: Floats,  # (n, C), probabilities
    labels: Ints,  # (n,), in [0, C)
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Intervals:
    """Percentile bootstrap over patches, stratified by class (algorithms.md section 4)."""
    if not 0 < level < 1:
        raise BadSetting(f"level {level}: use a share between 0 and 1, such as 0.95")
    scores, labels = checked(scores, labels)
    ranking = rank(scores, labels)
    values = observed_headline(ranking)
    (drawn,) = resampled_headlines([ranking], labels, resamples, seed)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=1)
    accuracy, auc_ovo, auc_ovr = (
        Interval(number(v), number(a), number(b)) for v, a, b in zip(values, low, high, strict=True)
    )
    return Intervals(accuracy, auc_ovo, auc_ovr, missing_classes(labels, scores.shape[1]))


def as_json(intervals: Intervals) -> dict[Headline, dict[str, float | None]]:
    """The form in result.json: each metric as value, low, high; null where undefined or withheld."""
    return {name: asdict(getattr(intervals, name)) for name in HEADLINES}


def paired_p_value(
    scores_a: Floats,  # (n, C)
    scores_b: Floats,  # (n, C), the same patches
    labels: Ints,  # (n,)
    metric: Headline,
    resamples: int = 2000,
    seed: int = 0,
) -> float:
    """Two-sided p of no difference, from the same resamples for both models; at least 1 / (resamples + 1).

    The differences are centred on the observed one: Efron and Tibshirani 1993, section 16.4.
    """
    if metric not in HEADLINES:
        raise BadSetting(f"metric {metric!r}: use one of {', '.join(HEADLINES)}")
    if np.shape(scores_a) != np.shape(scores_b):
        raise BadData(
            f"scores {np.shape(scores_a)} and {np.shape(scores_b)}: score the same patches by both models"
        )
    rankings = [rank(*checked(scores, labels)) for scores in (scores_a, scores_b)]
    row = HEADLINES.index(metric)
    observed_a, observed_b = (observed_headline(ranking)[row] for ranking in rankings)
    drawn_a, drawn_b = resampled_headlines(rankings, labels, resamples, seed)[:, row]
    difference = observed_a - observed_b
    if np.isnan(difference):
        raise BadData(f"{metric} needs patches of every class: compare on a set that has them, or use accuracy")
    as_far = np.abs(drawn_a - drawn_b - difference) >= abs(difference) - 1e-12  # rounding is no evidence
    return float((as_far.sum() + 1) / (resamples + 1))


def observed_headline(ranking: Ranking) -> Floats:
    """Accuracy, OvO and OvR AUC, (3,), of each patch taken once."""
    return weighted_headline(ranking, np.ones((len(ranking.rows), 1), dtype=np.int64))[:, 0]


def resampled_headlines(rankings: Sequence[Ranking], labels: Ints, resamples: int, seed: int) -> Floats:
    """Accuracy, OvO and OvR AUC, (models, 3, resamples), each model on the same resamples."""
    blocks = stratified_counts(labels, resamples, seed)
    return np.concatenate([[weighted_headline(r, counts) for r in rankings] for counts in blocks], axis=2)


def stratified_counts(labels: Ints, resamples: int, seed: int) -> Iterator[Counts]:
    """How often each resample takes each patch, (n, up to BLOCK) at a time; each class keeps its size.

    Each class has its own stream, so resample r is the same however many are drawn.
    """
    if resamples < 1:
        raise BadSetting(f"resamples {resamples}: use 1 or more, such as 2000")
    members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    streams = np.random.default_rng(seed).spawn(len(members))
    for start in range(0, resamples, BLOCK):
        width = min(BLOCK, resamples - start)
        counts = np.empty((len(labels), width), dtype=np.int32)
        for patches, stream in zip(members, streams, strict=True):
            picks = stream.integers(len(patches), size=(width, len(patches)))
            cells = picks * width + np.arange(width)[:, None]
            counts[patches] = np.bincount(cells.ravel(), minlength=len(patches) * width).reshape(-1, width)
        yield counts


def welch(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of equal means of two groups of runs with their own variances (Welch 1947)."""
    if min(len(a), len(b)) < 2:
        raise BadData(f"{len(a)} and {len(b)} runs: Welch's test needs two or more on each side")
    squares = np.array([np.var(group, ddof=1) / len(group) for group in (a, b)])
    gap = abs(float(np.mean(a) - np.mean(b)))
    if not squares.any():
        return float(gap == 0)  # no spread at all: the test's limit
    freedom = squares.sum() ** 2 / (squares**2 / [len(a) - 1, len(b) - 1]).sum()
    return float(2 * stdtr(freedom, -gap / np.sqrt(squares.sum())))


def mean_interval(
    mean: float,
    errors: Sequence[float],  # standard errors of independent means, each of as many values
    weights: Sequence[float],  # with which they make the mean; they add up to 1
    freedom: int,  # degrees of freedom of each error
    level: float = 0.95,
) -> Interval:
    """A weighted mean of means between its bounds: Student's t, for several with Welch's degrees of freedom."""
    parts = [weight * error for weight, error in zip(weights, errors, strict=True)]
    error = math.hypot(*parts)
    if error == 0:
        return Interval(mean, mean, mean)
    together = freedom / sum((part / error) ** 4 for part in parts)
    reach = float(stdtrit(together, (1 + level) / 2)) * error
    return Interval(mean, mean - reach, mean + reach)
