"""Quantiles of Student's t distribution."""

from __future__ import annotations

import math


def two_sided_quantile(confidence: float, degrees: int) -> float:
    """The ``t`` for which ``|T| <= t`` has probability ``confidence``, where T has ``degrees`` degrees of freedom."""
    # The probability rises with the angle theta = atan(t / sqrt(degrees)).
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _probability(middle, degrees) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _probability(theta: float, degrees: int) -> float:
    """Of ``|T| <= sqrt(degrees) tan(theta)``: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3-4."""
    odd = degrees % 2
    cos, term, total = math.cos(theta), 1.0, 0.0
    if odd:
        term = math.cos(theta)
    for i in range(degrees // 2):
        total += term
        term *= cos**2 * (2 * i + 1 + odd) / (2 * i + 2 + odd)
    return (theta + math.sin(theta) * total) * 2 / math.pi if odd else math.sin(theta) * total
