"""How far a time is from the others, in a way that a few odd ones among these don't disturb.

Times are compared by their logarithms, as what disturbs them multiplies. The z-score of ``t`` is ``ln(t / median) /
scale`` with ``scale = max(1.4826 MAD, least, 0.01)``, where MAD is the median absolute deviation of the logarithms:
the modified z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993), who advise 3.5 as the
threshold for outliers. Without the other two, noise would be an outlier wherever most times are alike: with 0.01
nothing is told apart by less than the threshold times 1 %.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

DEFAULT_OUTLIER_Z = 3.5
NORMAL = 1.4826
"""Makes of the MAD, or of half the interquartile range, the standard deviation of normal data."""
_LEAST = 0.01


def median_and_scale(times_us: Sequence[float]) -> tuple[float, float]:
    """Of the times, and of their logarithms."""
    median_us = statistics.median(times_us)
    deviation = statistics.median(abs(math.log(time_us / median_us)) for time_us in times_us)
    return median_us, max(NORMAL * deviation, _LEAST)


def z_score(time_us: float, median_us: float, scale: float, *, least: float = 0.0) -> float:
    """Of one time, from what ``median_and_scale`` says of all of them."""
    return math.log(time_us / median_us) / max(scale, least)
