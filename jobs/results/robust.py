"""How far a value is from the others, in a way that a few odd ones among these don't disturb.

The z-score of ``x`` is ``(x - median) / scale`` with ``scale = max(1.4826 MAD, least)``, MAD the median absolute
deviation: the modified z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993), whose threshold for
outliers is 3.5. Without ``least`` noise would be an outlier wherever most values are alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

NORMAL = 1.4826
"""Makes of the MAD, or of half the interquartile range, the standard deviation of normal data."""
DEFAULT_OUTLIER_Z = 3.5
LEAST_SHARE = 0.01
"""Times are never told apart by less than the threshold times this share of their median."""


def median_and_scale(values: Sequence[float], *, least: float = 0.0) -> tuple[float, float]:
    """Of positive ``values``; the scale is no less than ``least`` and ``LEAST_SHARE`` of the median."""
    median = statistics.median(values)
    deviation = statistics.median(abs(value - median) for value in values)
    return median, max(NORMAL * deviation, least, LEAST_SHARE * median)
