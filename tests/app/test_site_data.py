"""What a site tells of its data: counts that give no small count away."""

import numpy as np
import pytest

from app.site.data import counts


@pytest.mark.parametrize(
    ("patches", "shown"),
    [
        ([40, 30, 20], [40, 30, 20]),
        ([40, 30, 0], [40, 30, 0]),  # nothing is missing from the sum
        ([40, 30, 3], [40, 0, 0]),  # alone, 3 would be what is missing
        ([40, 30, 3, 1], [40, 0, 0, 0]),  # so would the 4 of two classes
        ([40, 30, 6, 7], [40, 30, 0, 0]),  # 13 may be any two counts
        ([40, 3], [0, 0]),
    ],
)
def test_no_count_below_the_floor_follows_from_the_others(patches: list[int], shown: list[int]) -> None:
    labels = np.repeat(np.arange(len(patches)), patches)
    assert counts(labels, len(patches), floor=10) == shown
    missing = sum(patches) - sum(shown)
    assert missing == 0 or missing >= 10
