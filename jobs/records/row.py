"""What the job measures and writes down: cases, checks, times and the rows of the journal.

The classes are the file format of ``results.jsonl``: one JSON object a line, one line per case and implementation. A
row can't hold a time unless its check passed. A baseline that could not run has a row without a check.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

FORMAT_VERSION = 3
# Version 1 has no ``attempt``: there was one. Versions 1 and 2 have no ``timeline`` and no ``island``.
_READABLE_VERSIONS = (1, 2, FORMAT_VERSION)
# In the order of the table; README.md defines each.
TIMES = ("kernel_us", "device_us", "in_graph_us", "call_us")
# The time that speedups, TFLOP/s and bandwidth are computed from.
HEADLINE = "in_graph_us"
# What a row was requested as that stands beside that of ``kernel.implementation``.
BASELINE = "baseline"
# How that begins of a candidate of the tuner's.
CANDIDATE = "tune:"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One problem: lhs ``[m_shard, k]`` and rhs ``[k, n_shard]`` on each of ``num_ranks`` ranks."""

    name: str
    m_shard: int
    k: int
    n_shard: int
    dtype: str
    num_ranks: int

    def __str__(self) -> str:
        return f"{self.name} m_shard={self.m_shard} k={self.k} n_shard={self.n_shard} {self.dtype} D={self.num_ranks}"


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, median and maximum over ranks of the ranks' own values (medians of a time in microseconds)."""

    min: float
    median: float
    max: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread:
        """Of one value a rank."""
        return cls(min(values), statistics.median(values), max(values))


Samples = dict[str, list[list[list[float]]]]  # by time's name: [rank][burst][sample]


def spreads(samples: Samples) -> dict[str, Any]:
    """Of each time over ranks, from each rank's median over all its samples."""
    medians = {
        name: [statistics.median(value for burst in rank for value in burst) for rank in ranks]
        for name, ranks in samples.items()
    }
    return {name: Spread.over(values) for name, values in medians.items()}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankCheck:
    """What one rank found when it compared its results with the float32 oracle."""

    passed: bool
    calls: int
    """Results compared: of single calls, and of chains in one program."""
    num_elements: int
    """Elements compared over all calls."""
    num_wrong: int
    """Elements further from the oracle than the tolerance, or not finite."""
    max_error: float
    """Largest absolute error."""
    relative_error: float
    """Largest ``||result - oracle|| / ||oracle||`` (Frobenius norms) of a call."""
    relative_tolerance: float
    """What ``relative_error`` must not exceed."""
    integers_exact: bool
    """Whether the results of integer data matched bit for bit."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The check of all ranks: passed where every rank's passed."""

    passed: bool
    calls: int
    num_elements: int
    num_wrong: int
    max_error: float
    relative_error: float
    relative_tolerance: float
    integers_exact: bool
    failed_ranks: tuple[int, ...] = ()

    @classmethod
    def of_ranks(cls, ranks: Sequence[RankCheck]) -> Check:
        """Counts added up, errors by their maximum."""
        return cls(
            passed=all(r.passed for r in ranks),
            calls=ranks[0].calls,
            num_elements=sum(r.num_elements for r in ranks),
            num_wrong=sum(r.num_wrong for r in ranks),
            max_error=_largest([r.max_error for r in ranks]),
            relative_error=_largest([r.relative_error for r in ranks]),
            relative_tolerance=_largest([r.relative_tolerance for r in ranks]),
            integers_exact=all(r.integers_exact for r in ranks),
            failed_ranks=tuple(i for i, r in enumerate(ranks) if not r.passed),
        )


def quartiles(bursts: Sequence[Sequence[float]]) -> list[float]:
    """Of all samples: three numbers; of three samples these themselves, of none none."""
    values = [value for burst in bursts for value in burst]
    if len(values) == 3:
        # They may be quartiles already.
        return sorted(values)
    if len(values) < 2:
        return values * 3
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return [lower, median, upper]


def _largest(values: Sequence[float]) -> float:
    """The maximum; NaN where one is NaN, which ``max`` may lose."""
    return math.nan if any(math.isnan(value) for value in values) else max(values)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Derived:
    """Figures computed from the headline time (maximum over ranks of ``in_graph_us``); ``None``: not known here."""

    tflops_per_gpu: float
    utilisation: float | None
    """Share of the device's dense tensor-core peak."""
    ratio_to_local: float | None
    """Time over that of the multiply without communication: the faster of ``local`` and ``local_cublas``."""
    speedup_over_xla: float | None
    bus_bandwidth_gbps: float | None
    """GB/s as nccl-tests defines it for all-gather; ``None`` for the local multiplies, which don't communicate."""
    overlap_efficiency: float | None
    """Share of the baseline's communication time that is hidden: (xla - t) / (xla - local), with that ``local``."""
    article_bound_us: float | None
    """That ``local`` plus 6 us for each of the D - 1 exchanges."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Telemetry:
    """GPU state of one rank while the case was timed, from NVML; medians of the samples."""

    rank: int
    num_samples: int
    sm_clock_mhz: float
    sm_clock_min_mhz: float
    power_w: float
    power_max_w: float
    temperature_c: float
    throttle_reasons: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the journal: a case, an implementation, its check and, where that passed, its times."""

    case: Case
    implementation: str
    """What really ran: never ``auto``."""
    requested: str
    """What the config asked for; ``baseline`` for the rows beside it."""
    reason: str | None = None
    """Why ``auto`` took this implementation, or why a baseline could not run."""
    config: dict[str, Any] | None = None
    """Tiles of the kernel, or how ``torch_fused`` ran; ``None`` where there is nothing to tell."""
    check: Check | None
    """``None`` where a baseline could not run: ``reason`` says why."""
    kernel_us: Spread | None = None
    device_us: Spread | None = None
    in_graph_us: Spread | None = None
    call_us: Spread | None = None
    samples_us: dict[str, list[list[list[float]]]] = dataclasses.field(default_factory=dict)
    """Raw times by name: ``[rank][burst][sample]``."""
    kernels_us: dict[str, float] = dataclasses.field(default_factory=dict)
    """Median time of each device kernel of a call by name, on the rank whose sum is largest."""
    timeline: list[list[dict[str, Any]]] = dataclasses.field(default_factory=list)
    """Of ``mosaic_gpu`` over several ranks: each rank's device steps in one call, from stamps that the kernel wrote;
    the fields of ``cmkernel.timeline.StepTimes``, whose import would need jax."""
    derived: Derived | None = None
    telemetry: tuple[Telemetry, ...] = ()
    time: str = ""
    """When the row was made: ISO 8601, UTC."""
    attempt: int = 1
    """Which gang of the job measured it: one more after each restart, and after each ``resume``."""
    island: str | None = None
    """Which one measured it, with ``cluster.world=per_island``; ``case.num_ranks`` is the number of its ranks."""
    version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        has_time = self.samples_us or any(getattr(self, name) for name in TIMES)
        if self.check is None and (has_time or not self.reason):
            raise ValueError(f"{self.case}: {self.implementation} has no check: it needs a reason, and no time")
        if self.failed and has_time:
            raise ValueError(f"{self.case}: {self.implementation} has a time although its check failed")

    @property
    def failed(self) -> bool:
        """Whether it ran and its results are wrong."""
        return self.check is not None and not self.check.passed

    @property
    def is_baseline(self) -> bool:
        """Whether it stands beside the row of ``kernel.implementation``, of which a case has one."""
        return self.requested == BASELINE

    @property
    def headline_us(self) -> float | None:
        """Maximum over ranks of the headline time, or ``None`` where the check failed."""
        spread: Spread | None = getattr(self, HEADLINE)
        return spread.max if spread else None

    @property
    def is_candidate(self) -> bool:
        """Whether it is one of the tuner's."""
        return self.requested.startswith(CANDIDATE)

    def condensed(self, *, of_verdict: bool = False) -> Row:
        """The row without its bulk: of each rank's samples their median, and of the headline time the quartiles.

        A candidate keeps its samples: it has few of them, and the tuner compares them burst by burst. ``of_verdict``
        leaves out what no verdict needs: the other times' samples, telemetry.
        """
        samples = self.samples_us
        if not self.is_candidate:
            samples = {
                name: [[quartiles(rank) if name == HEADLINE else quartiles(rank)[1:2]] for rank in ranks]
                for name, ranks in self.samples_us.items()
                if name == HEADLINE or not of_verdict
            }
        telemetry = () if of_verdict else self.telemetry
        return dataclasses.replace(self, samples_us=samples, kernels_us={}, timeline=[], telemetry=telemetry)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        """From a JSON object that ``to_json`` made, of this format version or an earlier one.

        Raises:
          ValueError: the object is of another format version.
        """
        if data.get("version") not in _READABLE_VERSIONS:
            raise ValueError(f"version={data.get('version')} of a row must be one of {_READABLE_VERSIONS}")
        data = {**data, "version": FORMAT_VERSION}
        data["case"] = Case(**data["case"])
        if (check := data["check"]) is not None:
            data["check"] = Check(**{**check, "failed_ranks": tuple(check["failed_ranks"])})
        for name in TIMES:
            data[name] = Spread(**data[name]) if data.get(name) else None
        data["derived"] = Derived(**data["derived"]) if data.get("derived") else None
        data["telemetry"] = tuple(
            Telemetry(**{**t, "throttle_reasons": tuple(t["throttle_reasons"])}) for t in data.get("telemetry", ())
        )
        return cls(**data)
