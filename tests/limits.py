"""Generous limits: they tell what ends from what hangs, also on a busy machine, and measure nothing."""

import contextlib
import time
from collections.abc import Iterator

GENEROUS_S = 60.0


@contextlib.contextmanager
def without_waiting(limit_s: float = GENEROUS_S) -> Iterator[None]:
    """The body ends within ``limit_s``, where what it must not wait for would take longer."""
    began = time.monotonic()
    yield
    took_s = time.monotonic() - began
    assert took_s < limit_s, f"took {took_s:.0f} s"
