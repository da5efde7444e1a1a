"""All islands of a job at once, each with its own gangs in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from jobs.attempts import Attempts
from jobs.errors import JobStopped
from jobs.gang.signals import raise_if_stopped
from jobs.results.outcome import Outcome

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.5
# A gang has 10 s to end; after a signal there is no more to wait for.
_STOP_TIMEOUT_S = 15.0


class Islands:
    """They share nothing but the ledger: where one ends badly, the others go on.

    Args:
      attempts: one for each island.
      outcome: gets the end of each that ends badly.
    """

    def __init__(self, attempts: Sequence[Attempts], outcome: Outcome) -> None:
        self._outcome = outcome
        self._errors: dict[str, BaseException] = {}
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
        try:
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(_INTERVAL_S)
                    raise_if_stopped()
        except JobStopped:
            # Their threads notice it as well.
            for thread in self._threads:
                thread.join(_STOP_TIMEOUT_S)
            raise
        for name, error in self._errors.items():
            with self._outcome.recording(f"island {name}: "):
                raise error

    def _run(self, attempts: Attempts) -> None:
        try:
            attempts.run()
        except BaseException as error:
            logger.warning("island %s ends: %s", attempts.name, error)
            self._errors[str(attempts.name)] = error
