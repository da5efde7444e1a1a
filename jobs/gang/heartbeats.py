"""Heartbeats of all ranks, including those that owe no answer: they may be dead, frozen or cut off."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from jobs.gang.answers import Answer, Answers


class Heartbeats:
    """Pings every rank again and again; call ``check`` at ``due_s`` or more often.

    Args:
      actors: actors by rank.
      limit_s: seconds without an answer after which a rank is silent.
    """

    def __init__(self, actors: Sequence[Any], limit_s: float) -> None:
        self._actors = actors
        self.limit_s = limit_s
        self._interval_s = limit_s / 5
        self._answers = Answers({})
        self._asked_s: dict[int, float] = {}
        self.due_s = 0.0
        """Time of the next check (``time.monotonic()``)."""

    def check(self) -> tuple[Answer | None, list[int]]:
        """Return a rank's death, if seen, and the ranks that are silent.

        Raises:
          JobStopped: a signal arrived.
        """
        now_s = time.monotonic()
        while (answer := self._answers.next(now_s)) is not None:
            if answer.error is not None:
                return answer, []
        # A rank's last answer came before this ping: its silence may have begun one interval earlier.
        limit_s = self.limit_s - self._interval_s
        silent = [rank for rank in self._answers.unfinished if now_s - self._asked_s[rank] >= limit_s]
        if now_s >= self.due_s:
            for rank in set(range(len(self._actors))) - self._answers.unfinished:
                self._asked_s[rank] = now_s
                self._answers.add(rank, self._actors[rank].ping.remote())
            self.due_s = now_s + self._interval_s
        return None, sorted(silent)
