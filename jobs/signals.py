"""SIGTERM, SIGINT and SIGHUP as an exception in the main thread."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from jobs.errors import JobStopped

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclasses.dataclass
class _State:
    depth: int = 0
    held: int = 0
    settled: bool = False
    signal_number: int | None = None
    previous: dict[signal.Signals, Any] = dataclasses.field(default_factory=dict)


_state = _State()


def take_signals() -> None:
    """Record signals until the process ends; outside ``stop_on_signals`` they raise nothing."""
    _install()


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise ``JobStopped`` in the main thread at the first of those signals; later ones don't disturb the cleanup.

    Nested contexts count as one; the outermost restores the previous handlers.

    Raises:
      JobStopped: a signal arrived, even if a call turned its exception into another: Ray's C++ code turns any exception
        of a handler into a SystemError.
    """
    if _state.depth == 0:
        _state.previous = {number: signal.getsignal(number) for number in _SIGNALS}
    _install()
    _state.depth += 1
    _state.settled = False
    try:
        raise_if_stopped()
        yield
    except Exception as error:
        if _state.signal_number is not None:
            raise JobStopped(_state.signal_number) from error
        raise
    finally:
        _state.depth -= 1
        if _state.depth:
            _install()
        else:
            for number, handler in _state.previous.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            _state.signal_number = None


def keep_signals() -> None:
    """Reinstall the handlers after a library replaced them; outside ``stop_on_signals``, do nothing."""
    if _state.depth and threading.current_thread() is threading.main_thread():
        _install()


def settle_signals() -> None:
    """Ignore signals for this job from now on, as its result is out; a later one still stops the next job."""
    _state.settled = True


def stopped_by(number: int) -> JobStopped:
    """Record a signal that a library's handler received and return its exception; later ones raise nothing."""
    if _state.signal_number is None:
        _state.signal_number = number
    return JobStopped(number)


def raise_if_stopped() -> None:
    """Raise ``JobStopped`` if a signal arrived and its exception was lost.

    Python prints and drops an exception that a handler raises inside a callback or a finalizer.
    """
    if _state.depth and _state.signal_number is not None:
        raise JobStopped(_state.signal_number)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Hold signals back during the block, which must run as a whole; ``JobStopped`` is raised at its end.

    In the cleanup after a signal it raises nothing. In other threads than the main one it has no effect, as signals
    never interrupt them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    was_stopped = _state.signal_number is not None
    _state.held += 1
    try:
        yield
    finally:
        _state.held -= 1
    if not (_state.held or was_stopped):
        raise_if_stopped()


def _install() -> None:
    for number in _SIGNALS:
        # nohup has SIGHUP ignored, and it stays so.
        if not (number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN):
            signal.signal(number, _handle)


def _handle(number: int, frame: FrameType | None) -> None:
    if _state.signal_number is not None:
        logger.warning("signal %d: already stopping after signal %d", number, _state.signal_number)
        return
    _state.signal_number = number
    if _state.depth and not (_state.held or _state.settled):
        raise JobStopped(number)
