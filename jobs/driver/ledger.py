"""Thread-safe place where a job's gangs deliver rows and report progress."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from jobs.driver.outcome import Outcome
from jobs.records.member import Member
from jobs.records.row import Row, RowSummary
from jobs.records.soak import SoakSlice
from jobs.results.analysis.best import Best
from jobs.results.analysis.robust import DEFAULT_OUTLIER_Z
from jobs.results.analysis.soaking import Point
from jobs.results.disk.journal import Journal
from jobs.results.terminal import table
from jobs.results.terminal.columns import DEFAULT_VIEW, View
from jobs.results.terminal.progress import Progress
from jobs.results.terminal.steps import Step
from jobs.signals import signals_held

logger = logging.getLogger(__name__)


class Ledger:
    """Sends every row to the journal, to W&B and to the table, in that order; ``outcome`` keeps a summary.

    Rows that were measured together are taken as a whole: a signal takes effect before or after them, so all
    of them have the same rows. Raw samples don't stay in the driver's memory.

    Args:
      journal: journal of the run directory, open.
      soak_journal: journal of the soak, open; ``None`` without a soak.
      outcome: gets row summaries and counts restarts; its W&B run has been started.
      progress: shows steps and rows.
      outlier_z: robust z-score above which an iteration of a soak stands out.
      view: columns of the table and its width.
    """

    def __init__(
        self,
        journal: Journal,
        outcome: Outcome,
        progress: Progress,
        *,
        soak_journal: Journal | None = None,
        outlier_z: float = DEFAULT_OUTLIER_Z,
        view: View = DEFAULT_VIEW,
    ) -> None:
        self.lock = threading.RLock()
        """Held while the ledger is read or changed."""
        self._journal = journal
        self._outcome = outcome
        self._progress = progress
        self._soak_journal = soak_journal
        self._outlier_z = outlier_z
        self._view = view
        self._introduced = False

    def rows(self, island: str | None) -> list[RowSummary]:
        """Rows of one island so far; ``None`` in a job without islands."""
        with self.lock:
            return [row for row in self._outcome.rows if row.island == island]

    def take(self, rows: Sequence[Row], members: Sequence[Member]) -> None:
        """Take rows that ``members`` measured together: for one case, or in one round of the tuner.

        Raises:
          InfrastructureError: a row can't be written to the journal; the rows before it are in all places.
          JobStopped: a signal arrived meanwhile; all rows are in all places.
        """
        with self.lock, signals_held():
            for row in rows:
                self._journal.append(row)
                assert self._outcome.wandb is not None
                summary = row.summary()
                self._outcome.wandb.log_row(summary, members)
                for line in table.row_lines(row, self._view, beside=rows):
                    self._progress.print(line)
                self._outcome.rows.append(summary)

    def points(self, island: str | None) -> list[Point]:
        """Slices of the soak of one island so far; ``None`` in a job without islands."""
        with self.lock:
            return [point for point in self._outcome.soak if point.island == island]

    def take_slice(self, part: SoakSlice) -> None:
        """Take a slice of the soak.

        Raises:
          InfrastructureError: the slice can't be written to its journal.
          JobStopped: a signal arrived meanwhile; the slice is recorded.
        """
        with self.lock, signals_held():
            assert self._soak_journal is not None
            self._soak_journal.append(part)
            self._outcome.soak.append(Point.of(part, outlier_z=self._outlier_z))
            if part.wrong:
                self.announce(f"WRONG: iterations {part.wrong[:8]} of the soak of {part.implementation} on {part.case}")

    def introduce(self, first: Sequence[str], later: Sequence[str], *, islands: bool) -> None:
        """Print a gang's header: ``first`` and the column names for the first gang, ``later`` for the others."""
        with self.lock:
            is_first, self._introduced = not self._introduced, True
            for line in first if is_first else later:
                self._progress.note(line)
            for line in table.column_lines(self._view, islands=islands) if is_first else ():
                self._progress.print(line)

    def print(self, line: str) -> None:
        """Print a line among the rows."""
        with self.lock:
            self._progress.note(line)

    def expect(self, plan: Sequence[Step], island: str | None) -> None:
        """Replace the previous gang's remaining steps with those that the new gang of ``island`` will run."""
        with self.lock:
            self._progress.expect(plan, island)

    def begin(self, step: Step, text: str, best: Best | None, island: str | None) -> None:
        """Log a step and show it, as ``Progress.begin`` does."""
        with self.lock:
            logger.info("%s", text)
            self._progress.begin(step, text, best, island)

    def announce(self, text: str) -> None:
        """Log a line and print it among the rows."""
        with self.lock:
            logger.info("%s", text)
            self._progress.note(f"# {text}")

    def give_up(self, text: str) -> None:
        """Record a case that can't be measured; the job ends with an error that has the first line of ``text``."""
        with self.lock:
            first_line = text.splitlines()[0]
            logger.error("%s", text)
            self._outcome.given_up.append(first_line)
            self._progress.note(f"# {first_line}")

    def restarts(self) -> None:
        """Count one more restart."""
        with self.lock:
            self._outcome.restarts += 1

    def restarted(self, after_s: float) -> None:
        """Add the seconds from noticing a loss to the first step of the next gang."""
        with self.lock:
            self._outcome.restart_s += after_s
