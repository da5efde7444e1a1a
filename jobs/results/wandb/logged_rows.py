"""The rows of a W&B run: they can make the run again, and give its summary, table and charts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.records.case import Case
from jobs.records.member import Member
from jobs.records.row import RowSummary
from jobs.results.wandb import metrics, per_rank
from jobs.results.wandb.charts import charts
from jobs.results.wandb.run import Files, WandbRun

# W&B's rule.
MAX_TABLE_LINES = 10_000


class LoggedRows:
    """Rows in the order of their steps."""

    def __init__(self) -> None:
        self._rows: list[tuple[RowSummary, list[str]]] = []  # with their tags
        self._per_rank_lines: deque[list[Any]] = deque(maxlen=MAX_TABLE_LINES)
        # The fastest row of each implementation; cases in the order of their numbers.
        self._cases: dict[Case, dict[str, RowSummary]] = {}
        self._failed: set[Case] = set()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def num_failed(self) -> int:
        """Number of rows whose check failed."""
        return sum(row.failed for row, _ in self._rows)

    def add(self, row: RowSummary, members: Sequence[Member]) -> None:
        """Keep a row as the next step."""
        if row.medians_us:
            self._per_rank_lines += per_rank.lines(row, members)
        self._rows.append((row, metrics.tags(row, members)))

    def log(self, run: WandbRun, step: int) -> None:
        """Log the row of a step, with its tags and its case's summary."""
        row, tags = self._rows[step]
        of_case = self._cases.setdefault(row.case, {})
        known = of_case.get(row.implementation)
        if known is None or _time_us(row) <= _time_us(known):
            of_case[row.implementation] = row
        if row.failed:
            self._failed.add(row.case)
        run.add_tags(tags)
        run.log_row(row, step, 1 + list(self._cases).index(row.case))
        # All islands have the same cases, so these have no summary there.
        if row.island is None:
            run.summarize(metrics.case_summary(of_case, passed=row.case not in self._failed))

    def files(self, pictures: Mapping[Path, str], journal: Path) -> Files:
        """Files for the end of the run; ``pictures`` are PNG files with their captions."""
        lines = list(self._per_rank_lines)
        return Files(lines, charts(self._cases, [row for row, _ in self._rows], lines), pictures, journal)


def _time_us(row: RowSummary) -> float:
    return math.inf if row.headline_us is None else row.headline_us
