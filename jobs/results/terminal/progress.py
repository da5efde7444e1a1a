"""Progress of a job: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from jobs.results.analysis.best import Best
from jobs.results.terminal.steps import Step, duration
from jobs.results.terminal.track import Track
from jobs.results.terminal.wrapping import terminal_width, width_of, wrapped

PLAIN_INTERVAL_S = 5.0
# The driver shares its host with ranks that are being timed: two redraws a second don't disturb them.
REFRESHES_PER_SECOND = 2


class Progress:
    """Display on ``stream`` while the ``with`` block runs: the current step, the time left and the best so far.

    Each island has its own track. Their steps add up; the time left is the slowest one's. Only one thread may
    call at a time.

    Without a terminal a line appears at most once every ``PLAIN_INTERVAL_S``. It begins with ``#``, like every line of
    the table that isn't a row.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._tracks: dict[str | None, Track] = defaultdict(Track)
        self._last_line_s: float | None = None
        self._bar: _Bar | None = None

    def __enter__(self) -> Progress:
        # A bar needs a terminal that can move its cursor.
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
            self._task = self._bar.add_task("starting", total=None)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    @property
    def left_s(self) -> float | None:
        """Seconds that are left; ``None`` while nothing is expected."""
        now_s = time.monotonic()
        # The thread that draws the bar asks too.
        tracks = list(self._tracks.values())
        return max((track.left_s(now_s) for track in tracks if not track.is_over), default=None)

    def expect(self, plan: Sequence[Step], island: str | None = None) -> None:
        """Replace the steps that the last gang of ``island`` didn't reach with ``plan``, the steps of its next gang."""
        self._tracks[island].expect(plan)
        if self._bar:
            self._bar.update(self._task, total=self._num_steps)

    def begin(self, step: Step, text: str, best: Best | None = None, island: str | None = None) -> None:
        """Begin ``step``; the one before it is done, and any planned steps between the two are skipped.

        Args:
          step: a later one of the plan; a step outside it counts as part of the one before.
          text: description for people.
          best: the fastest implementation of the case so far.
          island: the island that runs it.
        """
        now_s = time.monotonic()
        self._tracks[island].begin(step, now_s)
        numbers = [track.number for track in self._tracks.values()]
        if self._bar:
            done = sum(max(number - 1, 0) for number in numbers)
            self._bar.update(self._task, completed=done, description=f"{text}; {best}" if best else text)
        elif self._last_line_s is None or now_s - self._last_line_s >= PLAIN_INTERVAL_S:
            self._last_line_s = now_s
            line = f"# {sum(numbers)}/{self._num_steps} {text}; about {duration(self.left_s or 0.0)} left"
            whole = f"{line}; {best}" if best else line
            for part in [whole] if len(whole) <= self.width else [line, *([f"#   {best}"] if best else [])]:
                self.note(part)

    @property
    def _num_steps(self) -> int:
        return sum(track.num_steps for track in self._tracks.values())

    @property
    def width(self) -> int:
        """Width of the terminal, or of a log's lines."""
        return width_of(self._stream)

    def note(self, line: str) -> None:
        """Print a line of words at once, wrapped between words on a terminal; it stays."""
        for part in wrapped([line], terminal_width(self._stream)):
            self.print(part)

    def print(self, line: str) -> None:
        """Print a line at once, exactly as it is; it stays, above the bar."""
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)


class _Bar(RichProgress):
    """The current step, wrapped between words, and the bar below it."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            yield Text(task.description)
        yield self.make_tasks_table(self.tasks)


class _TimeLeftColumn(ProgressColumn):
    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        left_s = self._progress.left_s
        return Text("" if left_s is None else f"about {duration(left_s)} left")
