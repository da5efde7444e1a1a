"""Results of checks against the float32 oracle, by rank and over all ranks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankCheck:
    """Comparison of one rank's results with the float32 oracle."""

    passed: bool
    calls: int
    """Results compared: single calls, and chains of calls in one program."""
    num_elements: int
    """Elements compared over all calls."""
    num_wrong: int
    """Elements that aren't finite, or differ from the oracle by more than the tolerance."""
    max_error: float
    """Largest absolute error."""
    relative_error: float
    """Largest ``||result - oracle|| / ||oracle||`` (Frobenius norms) of a call."""
    relative_tolerance: float
    """Upper limit of ``relative_error``."""
    integers_exact: bool | None
    """True if the results of integer data match bit for bit; ``None`` for a layer, which has no exact results."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Check(RankCheck):
    """Check over all ranks: passed if it passed on every rank."""

    failed_ranks: tuple[int, ...] = ()

    @property
    def integers(self) -> str:
        """``integers_exact`` in words."""
        return {True: "exact", False: "not exact", None: "not tested"}[self.integers_exact]

    @classmethod
    def of_ranks(cls, ranks: Sequence[RankCheck]) -> Check:
        """Add up the ranks' counts, and take the maximum of their errors."""
        return cls(
            passed=all(r.passed for r in ranks),
            calls=ranks[0].calls,
            num_elements=sum(r.num_elements for r in ranks),
            num_wrong=sum(r.num_wrong for r in ranks),
            max_error=_largest([r.max_error for r in ranks]),
            relative_error=_largest([r.relative_error for r in ranks]),
            relative_tolerance=_largest([r.relative_tolerance for r in ranks]),
            integers_exact=None if ranks[0].integers_exact is None else all(r.integers_exact for r in ranks),
            failed_ranks=tuple(i for i, r in enumerate(ranks) if not r.passed),
        )


def _largest(values: Sequence[float]) -> float:
    """Maximum, or NaN if any value is NaN; plain ``max`` may lose a NaN."""
    return math.nan if any(math.isnan(value) for value in values) else max(values)
