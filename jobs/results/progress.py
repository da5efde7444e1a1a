"""How far the job is: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from jobs.results.best import Best
from jobs.results.steps import Step, time_left_s, told_s

PLAIN_INTERVAL_S = 5.0
# The driver shares its host with ranks that are being timed: two redraws a second don't disturb them.
REFRESHES_PER_SECOND = 2


class Progress:
    """Shows the steps of ``plan`` while the ``with`` block runs, on ``stream``: what runs, time left, best so far.

    Off a terminal, lines begin with ``#`` as all lines of the table that aren't rows, and come at most once every
    ``PLAIN_INTERVAL_S``.
    """

    def __init__(self, plan: Sequence[Step], stream: TextIO) -> None:
        self._plan = plan
        self._stream = stream
        # Places in the plan: of the next step at the earliest, and of the current one.
        self._next = 0
        self._place: int | None = None
        self._expected_s = sum(step.expected_s for step in plan)
        """Of the current step and all after it."""
        self._done_expected_s = self._done_s = 0.0
        self._began_s = 0.0
        self._last_line_s: float | None = None
        self._bar: _Bar | None = None

    def __enter__(self) -> Progress:
        # A terminal that can't move its cursor gets plain lines too.
        if self._stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
            self._bar = _Bar(
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                _TimeLeftColumn(self),
                console=Console(file=self._stream),
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=len(self._plan))
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    @property
    def left_s(self) -> float:
        """Seconds that are left, by the cost model and by how far it was off until now."""
        return time_left_s(
            expected_s=self._expected_s,
            done_expected_s=self._done_expected_s,
            done_s=self._done_s,
            current_s=0.0 if self._place is None else time.monotonic() - self._began_s,
        )

    def begin(self, step: Step, text: str, best: Best | None = None) -> None:
        """The step before this one is done, and ``step`` begins; steps of the plan in between are skipped.

        Args:
          step: one of the plan, behind the last one; another one counts as part of the step before it.
          text: what people shall read of it.
          best: the fastest implementation of the case so far.
        """
        now_s = time.monotonic()
        ahead = range(self._next, len(self._plan))
        place = next((place for place in ahead if self._plan[place] == step), None)
        if place is not None:
            self._move_to(place, now_s)
        place = self._place or 0
        if self._bar:
            self._bar.update(self._task, completed=place, description=f"{text}; {best}" if best else text)
        elif self._last_line_s is None or now_s - self._last_line_s >= PLAIN_INTERVAL_S:
            self._last_line_s = now_s
            parts = [text, f"about {told_s(self.left_s)} left", *([str(best)] if best else [])]
            print(f"# {place + 1}/{len(self._plan)} {'; '.join(parts)}", file=self._stream, flush=True)

    def _move_to(self, place: int, now_s: float) -> None:
        if self._place is not None:
            self._done_expected_s += self._plan[self._place].expected_s
            self._done_s += now_s - self._began_s
        self._expected_s -= sum(passed.expected_s for passed in self._plan[self._place or 0 : place])
        self._place, self._next, self._began_s = place, place + 1, now_s

    def print(self, line: str) -> None:
        """A line that stays, at once: above the bar where there is one."""
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)


class _Bar(RichProgress):
    """What runs on a line of its own, as long as the terminal is wide, and the bar below."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            yield Text(task.description, no_wrap=True, overflow="ellipsis")
        yield self.make_tasks_table(self.tasks)


class _TimeLeftColumn(ProgressColumn):
    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        return Text(f"about {told_s(self._progress.left_s)} left")
