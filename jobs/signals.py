"""SIGTERM and SIGINT as an exception in the main thread."""

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

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclasses.dataclass
class _State:
    depth: int = 0
    held: int = 0
    settled: bool = False
    signal_number: int | None = None
    previous: dict[signal.Signals, Any] = dataclasses.field(default_factory=dict)


_state = _State()


def take_signals() -> None:
    """Have signals noted until the process ends; one that comes outside ``stop_on_signals`` raises nothing."""
    _install()


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """Let the first SIGTERM or SIGINT raise ``JobStopped`` in the main thread; later ones don't disturb the cleanup.

    Nested contexts count as one; the outermost restores the handlers that it found.

    Raises:
      JobStopped: also where the signal arrived inside a call that made another exception of it: Ray's C++ code turns
        whatever a handler raises there into a SystemError.
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
    """Put the handlers back in their place, where a library has taken it; nothing outside ``stop_on_signals``."""
    if _state.depth and threading.current_thread() is threading.main_thread():
        _install()


def settle_signals() -> None:
    """The job has told how it ends: a signal from here on is too late for it, but not for the next one."""
    _state.settled = True


def stopped_by(number: int) -> JobStopped:
    """The exception for a signal that a library's handler got; later ones don't disturb the cleanup."""
    if _state.signal_number is None:
        _state.signal_number = number
    return JobStopped(number)


def raise_if_stopped() -> None:
    """Raise ``JobStopped`` where a signal has arrived, should its exception have been lost.

    An exception that a handler raises while the main thread runs a callback or a finalizer is printed and dropped.
    """
    if _state.depth and _state.signal_number is not None:
        raise JobStopped(_state.signal_number)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let the body come to its end first: a signal that arrives in it raises ``JobStopped`` where the block ends.

    In the cleanup after a signal it raises nothing.

    For what must be done as a whole or not at all. Other threads than the main one are never interrupted anyway.
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
        signal.signal(number, _handle)


def _handle(number: int, frame: FrameType | None) -> None:
    if _state.signal_number is not None:
        logger.warning("signal %d: already stopping after signal %d", number, _state.signal_number)
        return
    _state.signal_number = number
    if _state.depth and not (_state.held or _state.settled):
        raise JobStopped(number)
