"""Bootstrap of accuracy, OvO and OvR AUC against a loop over scikit-learn, on the same resamples."""

from itertools import islice

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, roc_auc_score

from benchmarks.ratio import Ratio, best_times
from fl_core.intervals import bootstrap, resampled_headlines, stratified_counts
from fl_core.metrics import Floats, Ints, rank

RESAMPLES = 2000
TIMED_LOOP = 20  # resamples of the loop, which takes as long for each: 2,000 would take minutes


def measure() -> list[Ratio]:
    """Speed at n = 2,000 with five classes, equality on the resamples timed, growth with n."""
    small, large = scored(2_000), scored(8_000)
    taken = resamples_of(small[1])
    loop, ours, ours_large = best_times(
        lambda: looped(*small, taken), lambda: bootstrap(*small), lambda: bootstrap(*large), repeats=5
    )
    whole_loop = loop * RESAMPLES / TIMED_LOOP
    apart = float(np.abs(looped(*small, taken) - vectorised(*small)).max())
    return [
        Ratio(
            "2,000 resamples of three metrics: scikit-learn loop / bootstrap",
            whole_loop / ours,
            at_least=100,
            detail=f"{whole_loop:.1f} s (from {TIMED_LOOP} resamples) / {ours:.3f} s; n = 2,000, 5 classes",
        ),
        Ratio("largest difference on the same resamples", apart, at_most=1e-12, detail=f"{apart:.1e}"),
        Ratio(
            "bootstrap: n = 8,000 / n = 2,000",
            ours_large / ours,
            at_most=6,
            detail=f"{ours_large:.3f} s / {ours:.3f} s; linear is 4",
        ),
    ]


def scored(n: int, classes: int = 5) -> tuple[Floats, Ints]:
    """Softmax scores of a model of middling skill, with labels."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(n) % classes)
    odds = np.exp(rng.normal(size=(n, classes)) + np.eye(classes)[labels])
    return odds / odds.sum(axis=1, keepdims=True), labels


def resamples_of(labels: Ints) -> list[Ints]:
    """The patches of the first resamples, drawn outside the clock."""
    counts = next(stratified_counts(labels, RESAMPLES, seed=0))
    return [np.repeat(np.arange(len(labels)), count) for count in islice(counts.T, TIMED_LOOP)]


def looped(scores: Floats, labels: Ints, taken: list[Ints]) -> NDArray[np.float64]:
    """Accuracy, OvO and OvR AUC of each resample by scikit-learn, (3, resamples)."""
    found = [
        (
            accuracy_score(labels[patches], scores[patches].argmax(axis=1)),
            roc_auc_score(labels[patches], scores[patches], multi_class="ovo"),
            roc_auc_score(labels[patches], scores[patches], multi_class="ovr"),
        )
        for patches in taken
    ]
    return np.array(found).T


def vectorised(scores: Floats, labels: Ints) -> Floats:
    """The same by ours."""
    return resampled_headlines([rank(scores, labels)], labels, RESAMPLES, seed=0)[0, :, :TIMED_LOOP]
