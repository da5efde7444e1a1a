"""Errors that end a job: each class has an exit code and a word for the RESULT line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_INFRASTRUCTURE = 3


class JobError(Exception):
    """An error that the job reports in one line, without a traceback."""

    exit_code: int
    status: str


class UsageError(JobError):
    """The user's mistake: an option, its value and the rule it breaks."""

    exit_code = EXIT_USAGE
    status = "usage_error"


class InfrastructureError(JobError):
    """A failure that no option fixes: no capacity or connection, a rank that died or hangs, a full disk."""

    exit_code = EXIT_INFRASTRUCTURE
    status = "infrastructure_error"


class NoCapacity(InfrastructureError):
    """The cluster lacks what the job needs; nodes that join later may bring it."""


class GangLost(InfrastructureError):
    """A rank or its node died, or the gang hangs: a fresh gang may get further."""

    def __init__(self, message: str, places: Sequence[Any]) -> None:
        super().__init__(message)
        self.places = places
        """Places of the ranks (``jobs.gang.messages.Place``)."""
        self.seen_s = time.monotonic()
        """Time of the discovery (``time.monotonic()``)."""


class JobStopped(BaseException):
    """A signal told the job to stop; ``exit_code`` is 128 plus the signal's number, as in shells."""

    status = "stopped"

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}")
        self.exit_code = 128 + signal_number


def one_line(error: BaseException | str | None) -> str:
    """Text of an error with all whitespace as single spaces."""
    return " ".join(str(error).split())
