"""Position of a job's or an island's gangs in their plan, and the time left."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.results.terminal.steps import Step, time_left_s


class Track:
    """The steps of gangs that follow one another; all times are in seconds on one clock."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        # Index of the current step, and the smallest one that the next step may have.
        self._place: int | None = None
        self._next = 0
        self._began_s = 0.0
        # Time of the steps that are done: expected and real.
        self._done_expected_s = self._done_s = 0.0

    @property
    def num_steps(self) -> int:
        """Steps begun, skipped and left."""
        return len(self._steps)

    @property
    def number(self) -> int:
        """Number of the current step, from 1; 0 before the first one."""
        return self._next

    @property
    def is_over(self) -> bool:
        """True if no known step is left."""
        return self._place is None and self._next == len(self._steps)

    def expect(self, plan: Sequence[Step]) -> None:
        """Replace the steps that weren't reached with ``plan``, when a gang begins or ends."""
        self._steps[self._next :] = plan
        self._place = None

    def begin(self, step: Step, now_s: float) -> None:
        """Begin ``step``; the one before it is done, and any between the two are skipped.

        A step that isn't ahead in the plan counts as part of the one before it.
        """
        ahead = range(self._next, len(self._steps))
        place = next((place for place in ahead if self._steps[place] == step), None)
        if place is None:
            return
        if self._place is not None and not (done := self._steps[self._place]).is_exact:
            self._done_expected_s += done.expected_s
            self._done_s += now_s - self._began_s
        self._place, self._next, self._began_s = place, place + 1, now_s

    def left_s(self, now_s: float) -> float:
        """Seconds left: by the cost model, corrected by its error so far; exact steps as they are."""
        current = None if self._place is None else self._steps[self._place]
        left = [*([current] if current else []), *self._steps[self._next :]]
        current_s = now_s - self._began_s if current else 0.0
        modelled_s = time_left_s(
            expected_s=sum(step.expected_s for step in left if not step.is_exact),
            done_expected_s=self._done_expected_s,
            done_s=self._done_s,
            current_s=0.0 if current is None or current.is_exact else current_s,
        )
        exact_s = sum(step.expected_s for step in left if step.is_exact)
        return modelled_s + max(exact_s - (current_s if current and current.is_exact else 0.0), 0.0)
