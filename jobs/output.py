"""Standard output and error that can't stop a job."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, TextIO

logger = logging.getLogger(__name__)


class LastingStream:
    """A text stream whose writes never raise.

    A terminal that is gone, a full disk or a reader that has left (``| head``) ends what is shown, and nothing else:
    the journal has every row, and the exit code says how the job ended. The first failure is logged, unless a
    reader has left.

    Args:
      stream: stream to write to; ``None`` if it was closed before the process started (``>&-``).
      name: its name in the log.
    """

    def __init__(self, stream: TextIO | None, name: str) -> None:
        self._name = name
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115

    def write(self, text: str) -> int:
        """Write ``text``; returns its length."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Write out what is buffered."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError) -> None:
        # The stream may still hold unwritten text, and its last flush must not fail when the process ends.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())
        # A reader that leaves (`| head`) has what it wanted.
        if not isinstance(error, BrokenPipeError):
            logger.warning("%s can't be written: %s; all results are kept", self._name, error)


def keep_output() -> None:
    """Let neither standard output nor standard error stop this process."""
    sys.stdout = LastingStream(sys.stdout, "standard output")
    sys.stderr = LastingStream(sys.stderr, "standard error")
