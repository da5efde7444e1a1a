"""Waiting for what actors answer, in the order in which they do, always with a time limit."""

from __future__ import annotations

import dataclasses
import queue
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from ray import ObjectRef

from jobs.signals import raise_if_stopped

# How long a signal whose exception got lost can stay unnoticed.
_CHECK_INTERVAL_S = 1.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came back from one call: a value, or the error of the call."""

    key: int
    value: Any = None
    error: BaseException | None = None


class Answers:
    """Calls in flight, by a number of the caller's choice (a rank)."""

    # Futures, not ray.wait() or ray.get(): a signal handler's exception can leave Python code, but inside Ray's C++ it
    # becomes a SystemError, and only when the call would have returned anyway.

    def __init__(self, refs: Mapping[int, ObjectRef[Any]]) -> None:
        self._arrived: queue.Queue[Answer] = queue.Queue()
        self.unfinished: set[int] = set()
        # The references live as long as this object: Ray may drop a result that nobody refers to.
        self._refs: dict[int, ObjectRef[Any]] = {}
        for key, ref in refs.items():
            self.add(key, ref)

    def add(self, key: int, ref: ObjectRef[Any]) -> None:
        """One more call in flight, of a key that has none."""
        self.unfinished.add(key)
        self._refs[key] = ref
        ref.future().add_done_callback(partial(self._done, key))

    def _done(self, key: int, future: Future[Any]) -> None:
        error = future.exception()
        self._arrived.put(Answer(key, error=error) if error else Answer(key, value=future.result()))

    def next(self, deadline: float) -> Answer | None:
        """The next answer, or ``None`` where there is none before ``deadline`` (``time.monotonic()``).

        Raises:
          JobStopped: a signal came.
        """
        while self.unfinished:
            raise_if_stopped()
            remaining_s = deadline - time.monotonic()
            try:
                answer = self._arrived.get(timeout=min(max(remaining_s, 0.0), _CHECK_INTERVAL_S))
            except queue.Empty:
                if remaining_s <= _CHECK_INTERVAL_S:
                    return None
                continue
            self.unfinished.discard(answer.key)
            return answer
        return None
