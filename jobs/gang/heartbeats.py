"""Whether every rank is still there, also one that owes no answer: it may be dead, frozen or cut off."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from jobs.gang.answers import Answer, Answers


class Heartbeats:
    """Asks every rank again and again; ``check`` is to be called whenever ``due_s`` has come, or more often.

    Args:
      actors: by rank.
      limit_s: a rank that gives no answer for so long is silent.
    """

    def __init__(self, actors: Sequence[Any], limit_s: float) -> None:
        self._actors = actors
        self.limit_s = limit_s
        self._interval_s = limit_s / 5
        self._answers = Answers({})
        self._asked_s: dict[int, float] = {}
        self.due_s = 0.0
        """When to check next (``time.monotonic()``)."""

    def check(self) -> tuple[Answer | None, list[int]]:
        """A rank's death, where one has been seen, and the ranks that are silent.

        Raises:
          JobStopped: a signal came.
        """
        now_s = time.monotonic()
        while (answer := self._answers.next(now_s)) is not None:
            if answer.error is not None:
                return answer, []
        # A rank was heard of before it was asked: the silence may have begun one interval earlier.
        limit_s = self.limit_s - self._interval_s
        silent = [rank for rank in self._answers.unfinished if now_s - self._asked_s[rank] >= limit_s]
        if now_s >= self.due_s:
            for rank in set(range(len(self._actors))) - self._answers.unfinished:
                self._asked_s[rank] = now_s
                self._answers.add(rank, self._actors[rank].ping.remote())
            self.due_s = now_s + self._interval_s
        return None, sorted(silent)
