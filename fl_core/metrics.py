"""Scores and labels → accuracy, AUC and their kin, once or for many weightings of the same patches at once.

A class without patches is named in `missing`, and what needs it is None: never 0.5, never an error.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mammofed.errors import BadData

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Counts = NDArray[np.signedinteger[Any]]

CALIBRATION_BINS = 15  # Guo et al. 2017


@dataclass(frozen=True)
class ClassMetrics:
    """One class against the rest; None where there is no patch of it, or none of the rest."""

    n: int
    auc: float | None
    sensitivity: float | None
    specificity: float | None
    pr_auc: float | None  # average precision: steps, not trapezia


@dataclass(frozen=True)
class Metrics:
    """What one model scores on one set of patches."""

    n: int
    accuracy: float | None
    auc_ovo: float | None  # Hand-Till, unweighted over pairs
    auc_ovr: float | None  # unweighted over classes
    calibration_error: float | None
    per_class: tuple[ClassMetrics, ...]
    confusion: tuple[tuple[int, ...], ...]  # [true class][predicted class]
    missing: tuple[int, ...]  # classes without a patch: why a mean AUC is None

    @property
    def undefined(self) -> str:
        """Why the mean AUCs are None; empty where they are not."""
        return f"no patches of class {', '.join(map(str, self.missing))}" if self.missing else ""


@dataclass(frozen=True)
class Column:
    """One class's score column: where each patch stands among the patches of that class."""

    rising: Ints  # (n_c,) rows of the class by rising score
    below: Ints  # (n,) how many of the class score lower than this row
    up_to: Ints  # (n,) how many of the class score lower or the same


@dataclass(frozen=True)
class Ranking:
    """All that AUC needs of the scores, sorted once; rows are patches grouped by class."""

    rows: Ints  # (n,) patch of each row
    spans: tuple[slice, ...]  # rows of each class
    columns: tuple[Column, ...]
    correct: NDArray[np.bool_]  # (n,) by row


def point_metrics(
    scores: Floats,  # (n, C), probabilities
    labels: Ints,  # (n,), in [0, C)
) -> Metrics:
    """Every metric of algorithms.md section 4, and what is reported beside them."""
    scores, labels = checked(scores, labels)
    ranking = rank(scores, labels)
    once = np.ones((len(labels), 1), dtype=np.int64)
    accuracy, auc_ovo, auc_ovr = weighted_headline(ranking, once)[:, 0]
    confusion = confusion_matrix(scores, labels)
    aucs = one_vs_rest(*pair_wins(ranking, once))[:, 0]
    return Metrics(
        n=len(labels),
        accuracy=number(accuracy),
        auc_ovo=number(auc_ovo),
        auc_ovr=number(auc_ovr),
        calibration_error=calibration_error(scores, labels),
        per_class=tuple(class_metrics(c, aucs[c], confusion, scores, labels) for c in range(scores.shape[1])),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        missing=missing_classes(labels, scores.shape[1]),
    )


def withhold(scores: Floats, labels: Ints, floor: int = 10) -> tuple[Floats, Ints]:
    """Leave out the patches of each class with fewer than `floor`, before anything is computed from them.

    So what a site shows with a few such patches is, number for number, what it shows with none.
    """
    scores, labels = checked(scores, labels)
    shown = np.bincount(labels, minlength=scores.shape[1])[labels] >= floor
    return scores[shown], labels[shown]


def checked(scores: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    """Scores as (n, C) probabilities and labels as (n,) classes, or an error that names what is wrong."""
    s, y = np.asarray(scores), np.asarray(labels)
    if s.ndim != 2 or s.shape[1] < 2 or y.shape != s.shape[:1]:
        raise BadData(f"scores {s.shape} with labels {y.shape}: (n, C) with C ≥ 2 and (n,) are needed")
    if not np.issubdtype(s.dtype, np.floating) or not np.issubdtype(y.dtype, np.integer):
        raise BadData(f"scores of {s.dtype}, labels of {y.dtype}: floats and integers are needed")
    if not ((s >= 0) & (s <= 1)).all():
        found = "not finite" if not np.isfinite(s).all() else f"from {s.min():g} to {s.max():g}"
        raise BadData(f"scores {found}: probabilities in [0, 1] are needed; take the softmax of finite logits")
    if len(y) and not 0 <= y.min() <= y.max() < s.shape[1]:
        raise BadData(f"labels from {y.min()} to {y.max()}: 0 to {s.shape[1] - 1} are needed, as scores have")
    return s, y.astype(np.int64)


def missing_classes(labels: Ints, classes: int) -> tuple[int, ...]:
    """The classes of which there is no patch."""
    return tuple(np.flatnonzero(np.bincount(labels, minlength=classes) == 0).tolist())


def number(value: float) -> float | None:
    """A float, or None for the NaN that stands for undefined within arrays."""
    return None if np.isnan(value) else float(value)


def ratio(part: float, whole: float) -> float | None:
    """part / whole, or None of nothing."""
    return float(part) / float(whole) if whole else None


def rank(scores: Floats, labels: Ints) -> Ranking:
    """Sort each column once; all resamples of these patches then cost a pass over them."""
    classes = scores.shape[1]
    rows = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=classes))
    spans = tuple(slice(start, end) for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
    # of two classes the first is the second turned round: 1 − p ties where p does not, by rounding
    ranked = scores if classes > 2 else np.stack([-scores[:, 1], scores[:, 1]], axis=1)
    columns = tuple(rank_column(ranked[rows, c], spans[c]) for c in range(classes))
    return Ranking(rows, spans, columns, (scores.argmax(axis=1) == labels)[rows])


def rank_column(column: Floats, span: slice) -> Column:
    """Where each row stands among the rows of `span`, ties told apart."""
    rising = span.start + np.argsort(column[span], kind="stable")
    sorted_scores = column[rising]
    below = np.searchsorted(sorted_scores, column, side="left")
    return Column(rising, below, np.searchsorted(sorted_scores, column, side="right"))


def weighted_headline(ranking: Ranking, counts: Counts) -> Floats:
    """Accuracy, mean OvO and mean OvR AUC, (3, B), each patch taken counts[patch, b] times; or NaN."""
    wins, sizes = pair_wins(ranking, counts)
    total = sizes.sum(axis=0)
    hits = counts[ranking.rows[ranking.correct]].sum(axis=0)
    accuracy = divided(hits, total)
    return np.stack([accuracy, one_vs_one(wins, sizes), one_vs_rest(wins, sizes).mean(axis=0)])


def pair_wins(ranking: Ranking, counts: Counts) -> tuple[Floats, Floats]:
    """Mann-Whitney U of class i over j in column i, (C, C, B), ties one half; and class sizes (C, B).

    With w the counts and W_i(s) the weight of class i up to score s, U_ij = Σ_j w_j (W_i(∞) − W_i(s_j)), and
    half of the weight tied with s_j: one cumulative sum a column. Integers throughout, so exact.
    """
    heaviest = int(counts.sum(axis=0).max(initial=0))
    exact = np.int32 if heaviest**2 // 4 < 2**31 else np.int64  # U is at most W_i W_j
    weights: Counts = counts[ranking.rows].astype(exact, copy=False)
    sizes = np.stack([weights[span].sum(axis=0) for span in ranking.spans]).astype(np.float64)
    wins = np.zeros((len(sizes), *sizes.shape))
    for i, column in enumerate(ranking.columns):
        reached = np.zeros((len(column.rising) + 1, counts.shape[1]), dtype=exact)
        np.cumsum(weights[column.rising], axis=0, out=reached[1:])
        for j, span in enumerate(ranking.spans):
            if i != j:
                lost = not_above(reached, column.below[span], column.up_to[span], weights[span])
                wins[i, j] = sizes[i] * sizes[j] - lost
    return wins, sizes


def not_above(
    reached: Counts,  # (n_i + 1, B) weight of the first k of class i
    below: Ints,  # (n_j,)
    up_to: Ints,  # (n_j,)
    weights: Counts,  # (n_j, B)
) -> Floats:
    """Weight of the pairs in which class i does not score higher than j, (B,); a tie counts one half."""
    lost: Floats = np.einsum("jb,jb->b", reached.take(up_to, axis=0), weights).astype(np.float64)
    tied = np.flatnonzero(below != up_to)
    if len(tied):
        level = reached[up_to[tied]] - reached[below[tied]]
        lost -= np.einsum("jb,jb->b", level, weights[tied]) / 2
    return lost


def one_vs_one(wins: Floats, sizes: Floats) -> Floats:
    """Mean of A(i|j) over ordered pairs, (B,): M of Hand and Till 2001; NaN where a class is missing."""
    pairs = divided(wins, sizes[:, None] * sizes[None])
    return np.asarray(pairs[~np.eye(len(sizes), dtype=bool)].mean(axis=0))


def one_vs_rest(wins: Floats, sizes: Floats) -> Floats:
    """AUC of each class against the rest, (C, B): its wins over the rest are its wins over each, added."""
    return divided(wins.sum(axis=1), sizes * (sizes.sum(axis=0) - sizes))


def divided(part: ArrayLike, whole: Floats) -> Floats:
    """part / whole, NaN where whole is 0."""
    undefined: Floats = np.full(whole.shape, np.nan)
    return np.asarray(np.divide(part, whole, out=undefined, where=whole != 0))


def confusion_matrix(scores: Floats, labels: Ints) -> Ints:
    """Patches by [true class, predicted class], (C, C); of equal scores the first class is predicted."""
    classes = scores.shape[1]
    cells = labels * classes + scores.argmax(axis=1)
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def class_metrics(c: int, auc: float, confusion: Ints, scores: Floats, labels: Ints) -> ClassMetrics:
    """Class c against the rest."""
    hits, n = confusion[c, c], confusion[c].sum()
    others = confusion.sum() - n
    false_alarms = confusion[:, c].sum() - hits
    return ClassMetrics(
        n=int(n),
        auc=number(auc),
        sensitivity=ratio(hits, n),
        specificity=ratio(others - false_alarms, others),
        pr_auc=average_precision(scores[:, c], labels == c),
    )


def average_precision(column: Floats, positive: NDArray[np.bool_]) -> float | None:
    """Σ (recall_k − recall_k−1) precision_k over falling distinct scores; None without positives."""
    if not positive.any():
        return None
    falling = np.argsort(-column, kind="stable")
    last = np.append(np.diff(column[falling]) != 0, True)  # of each run of equal scores
    hits = np.cumsum(positive[falling])[last]
    taken = np.flatnonzero(last) + 1
    return float(np.sum(np.diff(hits, prepend=0) * (hits / taken)) / hits[-1])


def calibration_error(scores: Floats, labels: Ints) -> float | None:
    """Mean |accuracy − confidence| over 15 bins of the top score, by size (Guo et al. 2017, equation 3)."""
    if not len(labels):
        return None
    confidence = scores.max(axis=1).astype(np.float64)
    bins = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1, 0, None)
    surplus = confidence - (scores.argmax(axis=1) == labels)
    return float(np.abs(np.bincount(bins, weights=surplus)).sum() / len(labels))
