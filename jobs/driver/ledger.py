"""Where the gangs of a job bring their rows and say what they do: several threads, where there are several gangs."""

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
    """Every row goes to the journal, to W&B and to the table, in this order; ``outcome`` keeps it condensed.

    A signal that stops the job comes before or after the rows that were measured together, so that none of them is lost
    and all of these places have the same ones. The raw samples leave the driver's memory with their row, however many
    rows there are.

    Args:
      journal: of the run directory, open.
      soak_journal: the soak's, open; ``None`` where there is no soak.
      outcome: gets the rows and counts the restarts; its W&B run has been started.
      progress: shows steps and rows.
      outlier_z: which iterations of a soak stand out.
      view: how rows are shown.
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
        """Held while anything of this object's is read or changed."""
        self._journal = journal
        self._outcome = outcome
        self._progress = progress
        self._soak_journal = soak_journal
        self._outlier_z = outlier_z
        self._view = view
        self._introduced = False

    def rows(self, island: str | None) -> list[RowSummary]:
        """Rows of one island so far; ``None``: of a job without islands."""
        with self.lock:
            return [row for row in self._outcome.rows if row.island == island]

    def take(self, rows: Sequence[Row], members: Sequence[Member]) -> None:
        """Rows that ``members`` measured together: of a case, or of a round of a tuning.

        Raises:
          InfrastructureError: one can't be written to the journal; those before it are everywhere.
          JobStopped: a signal arrived meanwhile; all of them are everywhere.
        """
        with self.lock, signals_held():
            for row in rows:
                self._journal.append(row)
                assert self._outcome.wandb is not None
                self._outcome.wandb.log_row(row.summary(), members)
                for line in table.row_lines(row, self._view, beside=rows):
                    self._progress.print(line)
                self._outcome.rows.append(row.summary())

    def points(self, island: str | None) -> list[Point]:
        """Slices of the soak of one island so far; ``None``: of a job without islands."""
        with self.lock:
            return [point for point in self._outcome.soak if point.island == island]

    def take_slice(self, found: SoakSlice) -> None:
        """A slice of the soak.

        Raises:
          InfrastructureError: it can't be written to its journal.
          JobStopped: a signal arrived meanwhile; the slice is everywhere.
        """
        with self.lock, signals_held():
            assert self._soak_journal is not None
            self._soak_journal.append(found)
            self._outcome.soak.append(Point.of(found, outlier_z=self._outlier_z))
            if found.wrong:
                self.announce(
                    f"WRONG: iterations {found.wrong[:8]} of the soak of {found.implementation} on {found.case}"
                )

    def introduce(self, first: Sequence[str], later: Sequence[str], *, islands: bool) -> None:
        """Print what stands above the rows of a gang: ``first`` and the columns for the first one, else ``later``."""
        with self.lock:
            is_first, self._introduced = not self._introduced, True
            for line in first if is_first else later:
                self._progress.note(line)
            for line in table.column_lines(self._view, islands=islands) if is_first else ():
                self._progress.print(line)

    def print(self, line: str) -> None:
        """A line among the rows."""
        with self.lock:
            self._progress.note(line)

    def expect(self, plan: Sequence[Step], island: str | None) -> None:
        """A gang of ``island`` will come to these steps, in the place of those that its predecessor hasn't come to."""
        with self.lock:
            self._progress.expect(plan, island)

    def begin(self, step: Step, text: str, best: Best | None, island: str | None) -> None:
        """A step begins, as ``Progress.begin`` has it."""
        with self.lock:
            logger.info("%s", text)
            self._progress.begin(step, text, best, island)

    def announce(self, text: str) -> None:
        """A line for the log and among the rows."""
        with self.lock:
            logger.info("%s", text)
            self._progress.note(f"# {text}")

    def restarts(self) -> None:
        """A gang was lost and another one takes over."""
        with self.lock:
            self._outcome.restarts += 1

    def restarted(self, after_s: float) -> None:
        """It has begun, so many seconds after the loss was found out."""
        with self.lock:
            self._outcome.restart_s += after_s
