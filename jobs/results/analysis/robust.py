"""The robust z-score: how far a time is from the others, whatever a few odd ones among them do.

Times are compared by their logarithms, because disturbances multiply them. The z-score of ``t`` is ``ln(t / median) /
scale`` with ``scale = max(1.4826 MAD, least, 0.01)``, where MAD is the median absolute deviation of the logarithms: the
modified z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993). They advise 3.5 as the threshold
for outliers. ``least`` and 0.01 keep noise from being an outlier where most times are equal: with 0.01, a time must
differ from the median by 1 % times the threshold.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

DEFAULT_OUTLIER_Z = 3.5
NORMAL = 1.4826
"""Standard deviation of normal data over its MAD, or over half its interquartile range."""
_LEAST = 0.01


def median_and_scale(times_us: Sequence[float]) -> tuple[float, float]:
    """Median of the times, and scale of their logarithms."""
    median_us = statistics.median(times_us)
    deviation = statistics.median(abs(math.log(time_us / median_us)) for time_us in times_us)
    return median_us, max(NORMAL * deviation, _LEAST)


def z_score(time_us: float, median_us: float, scale: float, *, least: float = 0.0) -> float:
    """Z-score of one time, with the ``median_and_scale`` of all times."""
    return math.log(time_us / median_us) / max(scale, least)
