"""How far the job is: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

PLAIN_INTERVAL_S = 5.0
# The driver shares its host with ranks that are being timed: two redraws a second don't disturb them.
REFRESHES_PER_SECOND = 2


class Progress:
    """Shows steps while the ``with`` block runs, on ``stream``.

    Off a terminal, step lines begin with ``#`` as all lines of the table that aren't rows, and come at most once every
    ``PLAIN_INTERVAL_S``.
    """

    def __init__(self, total_steps: int, stream: TextIO) -> None:
        self._total_steps = total_steps
        self._stream = stream
        self._done = 0
        self._last_line_s: float | None = None
        self._bar: RichProgress | None = None

    def __enter__(self) -> Progress:
        # A terminal that can't move its cursor gets plain lines too.
        if self._stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(file=self._stream),
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=self._total_steps)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def expect(self, steps: int) -> None:
        """So many more steps are to come than was known so far."""
        self._total_steps += steps
        if self._bar:
            self._bar.update(self._task, total=self._total_steps)

    def step(self, text: str) -> None:
        """The step before this one is done, and ``text`` begins."""
        if self._bar:
            self._bar.update(self._task, completed=self._done, description=text)
        elif self._last_line_s is None or time.monotonic() - self._last_line_s >= PLAIN_INTERVAL_S:
            self._last_line_s = time.monotonic()
            print(f"# {self._done + 1}/{self._total_steps} {text}", file=self._stream, flush=True)
        self._done += 1

    def print(self, line: str) -> None:
        """A line that stays, at once: above the bar where there is one."""
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)
