"""Progress of this process: cheap to record, and readable by another thread while this one is stuck."""

from __future__ import annotations

import time
from typing import Any

# jax's event around XLA's compiler: a scalar at its start, a duration at its end.
_COMPILATION = "/jax/core/compile/backend_compile_duration"


class Pulse:
    """Progress of one rank: the measuring thread writes it, the thread that answers the driver reads it."""

    def __init__(self) -> None:
        self.step: str | None = None
        """Running step; ``None`` between the driver's calls."""
        self.iteration = 0
        """Beats in this step."""
        self.finished_case: str | None = None
        """Most recently closed case."""
        self._num_compiling = 0
        self._last = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - self._last

    @property
    def is_compiling(self) -> bool:
        """XLA's compiler runs. It may take minutes without a beat."""
        return self._num_compiling > 0

    def begin(self, step: str | None) -> None:
        """Start a step; ``None`` ends the running one."""
        self.step, self.iteration, self._last = step, 0, time.monotonic()

    def beat(self) -> None:
        """Record progress within the step."""
        self.iteration += 1
        self._last = time.monotonic()

    def compilation_begins(self, event: str, value: float, **_: Any) -> None:
        """Scalar listener for ``jax.monitoring``."""
        if event == _COMPILATION:
            self._num_compiling += 1

    def compilation_ends(self, event: str, duration_secs: float, **_: Any) -> None:
        """Duration listener for ``jax.monitoring``."""
        if event == _COMPILATION:
            self._num_compiling -= 1
            self.beat()


PULSE = Pulse()
"""Pulse of this process."""
