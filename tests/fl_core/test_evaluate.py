"""What is shown of an evaluation says nothing of the patches that a site withholds."""

import numpy as np

from fl_core.evaluate import Evaluation, Scored, above_floor


def scored(counts: tuple[int, ...]) -> Scored:
    """So many patches of each class, the class by class same scores whatever the counts."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return Scored(np.eye(len(counts))[labels], labels)


def test_sums_are_the_same_with_few_patches_of_a_class_and_with_none() -> None:
    few, none = (
        above_floor(Evaluation({"a": scored((12, 15, 20)), "b": scored((12, number, 11))}, {})).pooled
        for number in (9, 0)
    )
    assert np.bincount(few.labels).tolist() == [24, 15, 31]
    assert np.array_equal(few.labels, none.labels)
    assert np.array_equal(few.scores, none.scores)
