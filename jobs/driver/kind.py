"""Kind of a job: what it does with each case."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from jobs.config.schema import Settings
from jobs.driver.measurement import Measurement
from jobs.measure.programs import Request
from jobs.records.case import Case
from jobs.records.row import Row, RowSummary
from jobs.results.terminal.steps import Step

Runner = Callable[[Case, Sequence[RowSummary]], Iterable[list[Row]]]
"""Measures a case, of which the given rows are there already; yields rows in lists of those measured together."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """``BENCH`` and ``TUNE`` are the two kinds."""

    name: str
    """Module that ``python -m`` runs."""
    refuse: Callable[[Settings], None]
    """Raises ``UsageError`` where this kind of job can't have these settings."""
    unfinished: Callable[[Settings, Sequence[Case], Sequence[RowSummary]], list[Case]]
    """Cases of which the job's rows so far lack some; raises ``UsageError`` for rows of the other kind."""
    steps: Callable[[Case, Sequence[Request], Settings, str], list[Step]]
    """Steps of a case on a kind of device, if nothing is skipped."""
    runner: Callable[[Measurement, Sequence[Request]], Runner]
