"""Scores and labels → intervals of what is told class by class: areas by bootstrap, rates by Wilson's formula."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fl_core.intervals import Interval, stratified_counts
from fl_core.metrics import Counts, Floats, Ints, checked, divided, number, one_vs_rest, pair_wins, rank

NORMAL = 1.959963984540054  # its 97.5 % quantile: 95 % lie between its negative and itself


@dataclass(frozen=True)
class Areas:
    """Areas under the curves of each class, each with its interval."""

    rest: tuple[Interval, ...]  # ROC, each class against the rest
    pairs: tuple[tuple[Interval, ...], ...]  # ROC, A(i|j) of Hand and Till; nothing is said where i = j
    precision: tuple[Interval, ...]  # precision-recall, each class against the rest


@dataclass(frozen=True)
class Falling:
    """One class's score column from the highest score down."""

    rows: Ints  # (n,)
    positive: NDArray[np.bool_]  # (n,) whether the row is of the class
    last: NDArray[np.bool_]  # (n,) of each run of equal scores


def class_areas(
    scores: Floats,  # (n, C), probabilities
    labels: Ints,  # (n,), in [0, C)
    resamples: int = 1000,
    seed: int = 0,
) -> Areas:
    """Percentile bootstrap over patches, stratified by class, as the headline's."""
    scores, labels = checked(scores, labels)
    ranking, classes = rank(scores, labels), scores.shape[1]
    columns = [falling(scores[:, c], labels == c) for c in range(classes)]

    def areas(counts: Counts) -> Floats:  # (C, C + 1, B): pairs, with the rest on the diagonal; then precision
        wins, sizes = pair_wins(ranking, counts)
        roc = divided(wins, sizes[:, None] * sizes[None])
        roc[np.diag_indices(classes)] = one_vs_rest(wins, sizes)
        precision = np.stack([weighted_precision(column, counts) for column in columns])
        return np.concatenate([roc, precision[:, None]], axis=1)

    values = areas(np.ones((len(labels), 1), dtype=np.int64))[..., 0]
    drawn = np.concatenate([areas(counts) for counts in stratified_counts(labels, resamples, seed)], axis=2)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=2)

    def at(i: int, j: int) -> Interval:
        return Interval(number(values[i, j]), number(low[i, j]), number(high[i, j]))

    return Areas(
        rest=tuple(at(c, c) for c in range(classes)),
        pairs=tuple(tuple(at(i, j) for j in range(classes)) for i in range(classes)),
        precision=tuple(at(c, classes) for c in range(classes)),
    )


def falling(column: Floats, positive: NDArray[np.bool_]) -> Falling:
    """Sort a column once for all resamples."""
    rows = np.argsort(-column, kind="stable")
    last = np.ones(len(rows), dtype=bool)
    last[:-1] = np.diff(column[rows]) != 0
    return Falling(rows, positive[rows], last)


def weighted_precision(column: Falling, counts: Counts) -> Floats:
    """Average precision, (B,), each patch taken counts[patch, b] times; NaN without patches of the class."""
    taken = counts[column.rows]
    hits = np.cumsum(taken * column.positive[:, None], axis=0)[column.last].astype(np.float64)
    reached = np.cumsum(taken, axis=0)[column.last].astype(np.float64)
    precision = np.divide(hits, reached, out=np.zeros_like(hits), where=reached > 0)
    gains = np.diff(hits, axis=0, prepend=0.0)
    return divided((gains * precision).sum(axis=0), gains.sum(axis=0))


def wilson(part: int, whole: int) -> Interval:
    """A share with its 95 % score interval (Wilson 1927): it holds also for few patches and near 0 and 1."""
    if not whole:
        return Interval(None, None, None)
    share, spread = part / whole, NORMAL**2 / whole
    centre = (share + spread / 2) / (1 + spread)
    reach = sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    return Interval(share, max(0.0, centre - reach), min(1.0, centre + reach))


def rates(called: NDArray[np.bool_], positive: NDArray[np.bool_]) -> tuple[Interval, Interval]:
    """Sensitivity and specificity of calling these patches positive."""
    hits, rejected = int((called & positive).sum()), int((~called & ~positive).sum())
    return wilson(hits, int(positive.sum())), wilson(rejected, int((~positive).sum()))
