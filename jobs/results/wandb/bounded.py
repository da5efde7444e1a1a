"""A call with a time limit, for libraries without one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def call_within[T](limit_s: float, function: Callable[[], T]) -> T:
    """Call ``function``, and return or raise what it does if that happens within ``limit_s`` seconds.

    The call runs in a daemon thread: it goes on after the limit but doesn't keep the process alive.

    Raises:
      TimeoutError: the call took longer.
    """
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="bounded call", daemon=True)
    thread.start()
    thread.join(max(limit_s, 0.0))
    if not outcome:
        raise TimeoutError(f"no answer within {limit_s:.0f} s")
    result, error = outcome[0]
    if isinstance(error, Exception):
        raise error
    if error is not None:
        # A SystemExit of the library must not end the job.
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
    value: T = result
    return value
