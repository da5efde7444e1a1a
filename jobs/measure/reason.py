"""An exception as a row's reason."""

from __future__ import annotations

import traceback

from jobs.errors import one_line

_MAX_CHARS = 300


def reason_of(error: Exception) -> str:
    """One line for the exception, cut to 300 characters; its traceback goes to the rank's log."""
    traceback.print_exception(error)
    text = one_line(error)
    if not isinstance(error, NotImplementedError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]} ..."
