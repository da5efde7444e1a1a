"""Kinds of jobs: benchmark and tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jobs.config.schema import Settings
from jobs.driver.measurement import Measurement
from jobs.measure.programs import Request
from jobs.records.case import Case
from jobs.records.row import Row, RowSummary
from jobs.results.terminal.steps import Step

Runner = Callable[[Case, Sequence[RowSummary]], Iterable[list[Row]]]
"""Measures a case, given the job's rows so far; yields lists of rows that were measured together."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Behaviour that differs between ``BENCH`` and ``TUNE``."""

    refuse: Callable[[Settings], None]
    """Raises ``UsageError`` if this kind of job can't have these settings."""
    unfinished: Callable[[Settings, Sequence[Case], Sequence[RowSummary]], list[Case]]
    """Cases that still lack rows; raises ``UsageError`` for rows of the other kind."""
    steps: Callable[[Case, Sequence[Request], Settings, str], list[Step]]
    """All steps of a case on a kind of device, assuming that none is skipped."""
    runner: Callable[[Measurement, Sequence[Request], Path], Runner]
    """Makes the function that measures cases on one gang; the path is where the table of winners goes."""
    writes_table: bool = False
