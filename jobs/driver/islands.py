"""Islands of a job, all at once: each runs its own gangs in its own thread."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Sequence

from jobs.driver.attempts import Attempts
from jobs.driver.outcome import Outcome
from jobs.errors import JobStopped
from jobs.signals import raise_if_stopped

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.5
# A gang has 10 s to end; waiting longer after a signal gains nothing.
_STOP_TIMEOUT_S = 15.0


class Islands:
    """Runs the attempts of all islands. They share only the ledger: when one fails, the others go on.

    Args:
      attempts: attempts of each island.
      outcome: records the islands that fail.
    """

    def __init__(self, attempts: Sequence[Attempts], outcome: Outcome) -> None:
        self._outcome = outcome
        self._ended: queue.Queue[tuple[str, BaseException | None]] = queue.Queue()
        self._threads = [
            threading.Thread(target=self._run, args=(one,), name=f"island-{one.name}", daemon=True) for one in attempts
        ]

    def run(self) -> None:
        """Measure every case on every island.

        Raises:
          JobStopped: a signal came; the gangs are gone.
        """
        for thread in self._threads:
            thread.start()
        running = len(self._threads)
        try:
            while running:
                with contextlib.suppress(queue.Empty):
                    # Not Thread.join(): a signal's exception inside it marks a running thread as ended.
                    name, error = self._ended.get(timeout=_INTERVAL_S)
                    running -= 1
                    if error is not None and not isinstance(error, JobStopped):
                        self._note(name, error)
                raise_if_stopped()
        except JobStopped:
            # The islands' threads see the signal too, and end their gangs.
            deadline = time.monotonic() + _STOP_TIMEOUT_S
            with contextlib.suppress(queue.Empty):
                while running:
                    self._ended.get(timeout=max(deadline - time.monotonic(), 0))
                    running -= 1
            raise

    def _note(self, name: str, error: BaseException) -> None:
        with self._outcome.recording(f"island {name}: "):
            raise error

    def _run(self, attempts: Attempts) -> None:
        error: BaseException | None = None
        try:
            attempts.run()
        except BaseException as raised:
            logger.warning("island %s ends: %s", attempts.name, raised)
            error = raised
        self._ended.put((str(attempts.name), error))
