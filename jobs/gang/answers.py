"""Answers of actors, in order of arrival and always with a time limit."""

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

# Upper bound for noticing a signal whose exception was lost.
_CHECK_INTERVAL_S = 1.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """Result of one call: its value or its error."""

    key: int
    value: Any = None
    error: BaseException | None = None


class Answers:
    """Calls in flight, by a number that the caller chooses, such as the rank."""

    # Futures instead of ray.wait() or ray.get(): inside Ray's C++ code a signal handler's exception becomes a
    # SystemError, and surfaces only when the call returns anyway.

    def __init__(self, refs: Mapping[int, ObjectRef[Any]]) -> None:
        self._arrived: queue.Queue[Answer] = queue.Queue()
        self.unfinished: set[int] = set()
        # Keep the references: Ray may drop a result that nothing refers to.
        self._refs: dict[int, ObjectRef[Any]] = {}
        for key, ref in refs.items():
            self.add(key, ref)

    def add(self, key: int, ref: ObjectRef[Any]) -> None:
        """Add a call in flight; ``key`` must have none."""
        self.unfinished.add(key)
        self._refs[key] = ref
        ref.future().add_done_callback(partial(self._done, key))

    def _done(self, key: int, future: Future[Any]) -> None:
        error = future.exception()
        self._arrived.put(Answer(key, error=error) if error else Answer(key, value=future.result()))

    def next(self, deadline: float) -> Answer | None:
        """Wait for the next answer; ``None`` if none arrives before ``deadline`` (``time.monotonic()``).

        Raises:
          JobStopped: a signal arrived.
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

    def collect(self, timeout_s: float) -> tuple[dict[int, Any], dict[int, BaseException]]:
        """Values and errors that arrive within ``timeout_s`` seconds; the others stay in ``unfinished``.

        Raises:
          JobStopped: a signal arrived.
        """
        values: dict[int, Any] = {}
        errors: dict[int, BaseException] = {}
        deadline = time.monotonic() + timeout_s
        while (answer := self.next(deadline)) is not None:
            if answer.error is None:
                values[answer.key] = answer.value
            else:
                errors[answer.key] = answer.error
        return values, errors
