"""Pairs of measurements that both sides have, and the measurements without a counterpart."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Collection, Sequence
from typing import Any, Self

from jobs.comparison.loading import Run
from jobs.records.op import Op
from jobs.records.row import Row

_REASON_WIDTH = 160
# Value of ``Row.requested``.
_AUTO = "auto"
Samples = list[list[list[float]]]
"""Raw times of one run in microseconds: ``[rank][burst][sample]``."""


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    """Key of comparable measurements. It lacks the case's name: the sizes say what was multiplied."""

    m_shard: int
    k: int
    n_shard: int
    types: str
    """Type of the operands, and that of the partial sums if it differs."""
    num_ranks: int
    implementation: str
    island: str = ""
    """Name of the island, in a job with islands: each is another machine."""
    op: Op = Op.all_gather_matmul

    @classmethod
    def of(cls, row: Row) -> Self:
        """Key of a row."""
        case = row.case
        sizes = case.m_shard, case.k, case.n_shard, case.types, case.num_ranks
        return cls(*sizes, row.implementation, row.island or "", case.op)

    def __str__(self) -> str:
        sizes = f"m_shard={self.m_shard} k={self.k} n_shard={self.n_shard}"
        of_island = f" of island {self.island}" if self.island else ""
        op = "" if self.op is Op.all_gather_matmul else f"{self.op} "
        return f"{self.implementation} on {op}{sizes} {self.types} D={self.num_ranks}{of_island}"


@dataclasses.dataclass(frozen=True)
class Pair:
    """A key that both sides measured, with the samples of each run of each side."""

    key: Key
    case_name: str
    base: list[Samples]
    new: list[Samples]
    base_configs: list[dict[str, Any]]
    """Distinct tiles that BASE ran with; empty where the implementation has none."""
    new_configs: list[dict[str, Any]]
    """Likewise for NEW."""


@dataclasses.dataclass(frozen=True)
class Matched:
    """All measurements of two sides."""

    pairs: list[Pair]
    left_out: list[str]
    """Measurements that aren't compared, each with the reason."""
    broken: dict[Key, str]
    """Keys that were right in BASE and aren't in NEW, with the reason."""


class _Side:
    """A side's samples, tiles and unusable rows by key; keys in ``switched`` collect the rows that ``auto`` chose."""

    def __init__(self, name: str, runs: Sequence[Run], metric: str, switched: Collection[Key]) -> None:
        self.names: dict[Key, str] = {}
        self.samples: dict[Key, list[Samples]] = {}
        self.configs: dict[Key, list[dict[str, Any]]] = {}
        unusable: dict[str, list[str]] = {}
        self.right: set[Key] = set()
        self.failed: set[Key] = set()
        self.not_run: set[Key] = set()
        for run in runs:
            for key, rows in _by_key(run, switched).items():
                case_name = rows[0].case.label
                self.names.setdefault(key, f"{key.island}: {case_name}" if key.island else case_name)
                usable = []
                for row in rows:
                    if reason := _unusable(row, metric):
                        unusable.setdefault(f"{key}: {reason}", []).append(str(run.path))
                    else:
                        usable.append(row.samples_us[metric])
                    if not row.is_candidate:
                        (self.not_run if row.check is None else self.failed if row.failed else self.right).add(key)
                    configs = self.configs.setdefault(key, [])
                    config = {"implementation": row.implementation} if key in switched else row.config
                    if config and config not in configs:
                        configs.append(config)
                if usable:
                    self.samples.setdefault(key, []).append(_joined(usable))
        self.unusable = [
            f"{line} ({name}, {'all runs' if len(paths) == len(runs) else ', '.join(paths)})"
            for line, paths in unusable.items()
        ]


def match(base: Sequence[Run], new: Sequence[Run], metric: str) -> Matched:
    """Pair up what both sides measured under ``metric``, in the order of BASE.

    A row is left out, and listed with its run, where its check failed, it couldn't run, it lacks the metric, or it is a
    tuner's candidate. Where ``auto`` chose different implementations in BASE and NEW, these are compared as ``auto``.
    """
    chosen_in_base, chosen_in_new = _chosen_by_auto(base), _chosen_by_auto(new)
    switched = {key for key, names in chosen_in_base.items() if names != chosen_in_new.get(key, names)}
    in_base, in_new = _Side("BASE", base, metric, switched), _Side("NEW", new, metric, switched)
    keys = list(dict.fromkeys((*in_base.names, *in_new.names)))
    left_out = [f"{key}: only in BASE" for key in keys if key not in in_new.names]
    left_out += [f"{key}: only in NEW" for key in keys if key not in in_base.names]
    return Matched(
        pairs=[
            Pair(
                *(key, in_base.names[key], in_base.samples[key], in_new.samples[key]),
                *(in_base.configs[key], in_new.configs[key]),
            )
            for key in keys
            if key in in_base.samples and key in in_new.samples
        ],
        left_out=[*left_out, *in_base.unusable, *in_new.unusable],
        broken={key: reason for key in keys if (reason := _broken(key, in_base, in_new))},
    )


def _broken(key: Key, base: _Side, new: _Side) -> str | None:
    if key not in base.right - base.failed - base.not_run:
        return None
    if key in new.failed:
        return "its check fails in NEW alone"
    if key in new.not_run:
        return "it couldn't run in NEW"
    return None


def _chosen_by_auto(runs: Sequence[Run]) -> dict[Key, set[str]]:
    """Implementations that ``auto`` chose, by the key with ``auto`` in their place."""
    chosen: dict[Key, set[str]] = {}
    for row in (row for run in runs for row in run.rows if row.requested == _AUTO):
        chosen.setdefault(_auto_key(row), set()).add(row.implementation)
    return chosen


def _auto_key(row: Row) -> Key:
    return dataclasses.replace(Key.of(row), implementation=_AUTO)


def _by_key(run: Run, switched: Collection[Key]) -> dict[Key, list[Row]]:
    rows: dict[Key, list[Row]] = {}
    for row in run.rows:
        rows.setdefault(Key.of(row), []).append(row)
        if row.requested == _AUTO and _auto_key(row) in switched:
            rows.setdefault(_auto_key(row), []).append(row)
    return rows


def _unusable(row: Row, metric: str) -> str | None:
    if row.is_candidate:
        return "candidates of jobs.tune, which differ in their configs"
    if row.check is None:
        return "not run: " + textwrap.shorten(row.reason or "", _REASON_WIDTH, placeholder=" ...")
    if row.failed:
        ranks = ", ".join(map(str, row.check.failed_ranks))
        return f"check failed on rank {ranks}"
    ranks_of_samples = row.samples_us.get(metric)
    if not ranks_of_samples or not all(any(rank) for rank in ranks_of_samples):
        return f"{metric} not measured"
    return None


def _joined(measured: list[Samples]) -> Samples:
    """Join the bursts of equal cases: two layers of a model may have the same sizes."""
    return [[burst for bursts in of_rank for burst in bursts] for of_rank in zip(*measured, strict=True)]
