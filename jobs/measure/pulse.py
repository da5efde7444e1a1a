"""How far this process has got: cheap to say, and readable by another thread while this one is stuck."""

from __future__ import annotations

import time
from typing import Any

# jax's event around XLA's compiler: a scalar when it begins, a duration when it ends.
_COMPILATION = "/jax/core/compile/backend_compile_duration"


class Pulse:
    """Of one rank: written by the thread that measures, read by the one that answers the driver."""

    def __init__(self) -> None:
        self.step: str | None = None
        """What runs; ``None`` between the driver's calls."""
        self.iteration = 0
        """Beats in this step."""
        self.finished_case: str | None = None
        """The last case that was closed."""
        self._num_compiling = 0
        self._last = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - self._last

    @property
    def is_compiling(self) -> bool:
        """Whether XLA's compiler runs: it may take minutes, and says nothing meanwhile."""
        return self._num_compiling > 0

    def begin(self, step: str | None) -> None:
        """A step begins, or the one before it has ended."""
        self.step, self.iteration, self._last = step, 0, time.monotonic()

    def beat(self) -> None:
        """The step got further."""
        self.iteration += 1
        self._last = time.monotonic()

    def compilation_begins(self, event: str, value: float, **_: Any) -> None:
        """A listener of scalars for ``jax.monitoring``."""
        if event == _COMPILATION:
            self._num_compiling += 1

    def compilation_ends(self, event: str, duration_secs: float, **_: Any) -> None:
        """A listener of durations for ``jax.monitoring``."""
        if event == _COMPILATION:
            self._num_compiling -= 1
            self.beat()


PULSE = Pulse()
"""This process's own."""
