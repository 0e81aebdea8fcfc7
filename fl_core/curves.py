"""Scores and labels → what is drawn of them: ROC curves, calibration bins, operating points at a threshold."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_core.metrics import (
    CALIBRATION_BINS,
    Floats,
    Ints,
    checked,
    divided,
    number,
    pair_wins,
    rank,
    ratio,
)

POINTS = 200  # of a curve that is drawn


@dataclass(frozen=True)
class RocCurve:
    """One class against another, or against the rest; `auc` is of all patches, the points are thinned out."""

    positive: int
    negative: int | None  # None: the rest
    positives: int
    negatives: int
    auc: float | None
    false_positive_rate: Floats  # (k,), rising from 0 to 1; empty where one side has no patch
    true_positive_rate: Floats


@dataclass(frozen=True)
class Bin:
    """The patches whose top score lies in one bin of [0, 1]."""

    n: int
    confidence: float | None
    accuracy: float | None


def roc_curves(
    scores: Floats,  # (n, C), probabilities
    labels: Ints,  # (n,)
    points: int = POINTS,
) -> tuple[list[RocCurve], list[RocCurve]]:
    """One curve a class against the rest, and one for each ordered pair: A(i|j) of Hand and Till, in column i."""
    scores, labels = checked(scores, labels)
    wins, sizes = (part[..., 0] for part in pair_wins(rank(scores, labels), np.ones((len(labels), 1), np.int64)))
    total = sizes.sum()

    def curve(i: int, j: int | None) -> RocCurve:
        others = labels != i if j is None else labels == j
        lost_to = total - sizes[i] if j is None else sizes[j]
        won = wins[i].sum() if j is None else wins[i, j]
        auc = number(float(divided(won, np.asarray(sizes[i] * lost_to))))
        chosen = (labels == i) | others
        rates = thinned(*roc(scores[chosen, i], labels[chosen] == i), points)
        return RocCurve(i, j, int(sizes[i]), int(lost_to), auc, *rates)

    classes = range(scores.shape[1])
    return [curve(i, None) for i in classes], [curve(i, j) for i in classes for j in classes if i != j]


def roc(column: Floats, positive: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """False and true positive rate at every distinct score, from (0, 0) to (1, 1); empty without both sides."""
    hits = int(positive.sum())
    alarms = len(positive) - hits
    if not hits or not alarms:
        return np.empty(0), np.empty(0)
    falling = np.argsort(-column, kind="stable")
    last = np.append(np.diff(column[falling]) != 0, True)  # of each run of equal scores
    true = np.cumsum(positive[falling])[last]
    false = np.flatnonzero(last) + 1 - true
    return np.append(0.0, false / alarms), np.append(0.0, true / hits)


def thinned(across: Floats, up: Floats, points: int) -> tuple[Floats, Floats]:
    """At most so many points, evenly along the curve, its ends among them."""
    if len(across) <= points:
        return across, up
    way = across + up  # 0 to 2: both rates only rise
    chosen = np.unique(np.searchsorted(way, np.linspace(0, way[-1], points)))
    return across[chosen], up[chosen]


def calibration_bins(scores: Floats, labels: Ints) -> list[Bin]:
    """The bins of `calibration_error`: patches by their top score, with its mean and how often it is right."""
    scores, labels = checked(scores, labels)
    confidence = scores.max(axis=1).astype(np.float64)
    bins = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1, 0, None)
    sizes, sure, right = (
        np.bincount(bins, weights=weights, minlength=CALIBRATION_BINS)
        for weights in (None, confidence, scores.argmax(axis=1) == labels)
    )
    return [Bin(int(n), ratio(c, n), ratio(r, n)) for n, c, r in zip(sizes, sure, right, strict=True)]
