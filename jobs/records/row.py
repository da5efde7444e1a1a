"""Rows of the journal: one case, one implementation, its check and, if that passed, its times.

The classes define the file format of ``results.jsonl``: one JSON object a line. A row has times only if its check
passed. The row of a baseline that couldn't run has the reason instead of a check.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jobs.records.case import Case
from jobs.records.check import Check
from jobs.records.statistics import Quartiles, Spread, rank_medians_us

FORMAT_VERSION = 4
# Version 1 has no ``attempt``: it was always 1. Versions 1 and 2 have no ``timeline`` and no ``island``. Versions up to
# 3 have neither ``op`` nor ``partial_dtype`` in a case: every case was an all_gather_matmul.
READABLE_VERSIONS = (1, 2, 3, FORMAT_VERSION)
# In the order of the table; docs/measuring.md defines each.
TIMES = ("kernel_us", "device_us", "in_graph_us", "call_us")
# Speedups, TFLOP/s and bandwidth are computed from this time.
HEADLINE = "in_graph_us"
# ``RowBase.requested`` of a baseline.
BASELINE = "baseline"
# Prefix of ``RowBase.requested`` of a tuner's candidate.
CANDIDATE = "tune:"

Samples = dict[str, list[list[list[float]]]]
"""Raw times in microseconds by name: ``[rank][burst][sample]``."""


def spreads(samples: Samples) -> dict[str, Any]:
    """Spread of each time over the ranks, as keyword arguments of a row."""
    return {name: Spread.over(rank_medians_us(ranks)) for name, ranks in samples.items()}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Derived:
    """Figures computed from the headline time; ``None`` for an unknown one."""

    tflops_per_gpu: float
    utilisation: float | None
    """Fraction of the device's dense tensor-core peak."""
    ratio_to_local: float | None
    """Time over the time of the multiply without communication: the faster of ``local`` and ``local_cublas``."""
    speedup_over_xla: float | None
    bus_bandwidth_gbps: float | None
    """GB/s as nccl-tests defines it for all-gather and reduce-scatter; ``None`` for local multiplies, which don't
    communicate."""
    overlap_efficiency: float | None
    """Fraction of the baseline's communication time that is hidden: (xla - t) / (xla - local)."""
    article_bound_us: float | None
    """Bound of the JAX tutorial: ``local`` plus 6 us for each of the D - 1 exchanges."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Telemetry:
    """GPU state of one rank while the case was timed: medians of NVML's samples, and extremes where named."""

    rank: int
    num_samples: int
    sm_clock_mhz: float
    sm_clock_min_mhz: float
    power_w: float
    power_max_w: float
    temperature_c: float
    throttle_reasons: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RowBase:
    """Fields that a row and its summary share."""

    case: Case
    implementation: str
    """Implementation that ran, never ``auto``."""
    requested: str
    """``kernel.implementation`` of the config; ``baseline`` for baselines, ``tune:...`` for candidates."""
    reason: str | None = None
    """Reason why ``auto`` took this implementation, or why a baseline couldn't run."""
    config: dict[str, Any] | None = None
    """Config of the implementation, or the way ``torch_fused`` ran; ``None`` if it has no config."""
    check: Check | None
    """``None`` for a baseline that couldn't run."""
    kernel_us: Spread | None = None
    device_us: Spread | None = None
    in_graph_us: Spread | None = None
    call_us: Spread | None = None
    derived: Derived | None = None
    telemetry: tuple[Telemetry, ...] = ()
    time: str = ""
    """Time at which the row was made: ISO 8601, UTC."""
    attempt: int = 1
    """Number of the gang that measured the row; grows with each restart and each ``resume``."""
    island: str | None = None
    """Island that measured the row, with ``cluster.world=per_island``."""

    @property
    def failed(self) -> bool:
        """True if the implementation ran and its results are wrong."""
        return self.check is not None and not self.check.passed

    @property
    def is_baseline(self) -> bool:
        """True for rows of baselines."""
        return self.requested == BASELINE

    @property
    def is_candidate(self) -> bool:
        """True for rows of the tuner's candidates."""
        return self.requested.startswith(CANDIDATE)

    @property
    def headline_us(self) -> float | None:
        """Maximum over ranks of the headline time; ``None`` without one."""
        spread: Spread | None = getattr(self, HEADLINE)
        return spread.max if spread else None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RowSummary(RowBase):
    """Row without its bulk, for the driver's memory; the journal has the samples."""

    medians_us: dict[str, list[float]]
    """Medians by name of the time, one per rank."""
    headline_quartiles_us: list[Quartiles]
    """Quartiles of each rank's headline samples; empty without a time."""
    samples_us: Samples
    """Headline samples of a candidate, because candidates are compared burst by burst; empty for other rows."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row(RowBase):
    """One line of the journal."""

    samples_us: Samples = dataclasses.field(default_factory=dict)
    kernels_us: dict[str, float] = dataclasses.field(default_factory=dict)
    """Median time of each device kernel of a call, by name, on the rank whose sum is largest."""
    timeline: list[list[dict[str, Any]]] = dataclasses.field(default_factory=list)
    """Device steps of each rank in one call of ``mosaic_gpu``, from the kernel's stamps: the fields of
    ``cmkernel.timeline.StepTimes``, which isn't imported here because it needs jax."""
    version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        has_time = self.samples_us or any(getattr(self, name) for name in TIMES)
        if self.check is None and (has_time or not self.reason):
            raise ValueError(f"{self.case}: {self.implementation} has no check: it needs a reason, and no time")
        if self.failed and has_time:
            raise ValueError(f"{self.case}: {self.implementation} has a time although its check failed")

    @property
    def medians_us(self) -> dict[str, list[float]]:
        """Medians by name of the time, one per rank."""
        return {name: rank_medians_us(ranks) for name, ranks in self.samples_us.items()}

    @property
    def headline_quartiles_us(self) -> list[Quartiles]:
        """Quartiles of each rank's headline samples; empty without a time."""
        return [Quartiles.of(bursts) for bursts in self.samples_us.get(HEADLINE, ())]

    def summary(self) -> RowSummary:
        """The row without its bulk."""
        return RowSummary(
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(RowBase)},
            medians_us=self.medians_us,
            headline_quartiles_us=self.headline_quartiles_us,
            samples_us=self.samples_us if self.is_candidate else {},
        )


AnyRow = Row | RowSummary
