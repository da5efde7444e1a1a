"""Start and end of Ray in this process; a signal may interrupt either at any moment."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from jobs.errors import InfrastructureError, JobError, one_line
from jobs.signals import keep_signals, raise_if_stopped, signals_held, stopped_by

logger = logging.getLogger(__name__)

_SHUTDOWN_TIMEOUT_S = 20.0
_KEEP_INTERVAL_S = 0.005
_RAYLET_TIMEOUT_S = 5.0


@contextlib.contextmanager
def connecting(what: str) -> Iterator[None]:
    """Clean up after a failed ``init``; use it until another owner will call ``shut_down``.

    Raises:
      InfrastructureError: Ray didn't start or can't be reached; the message begins with ``what``.
      JobStopped: a signal arrived meanwhile; all that was started has ended.
    """
    try:
        yield
    except BaseException as error:
        stopped = stopped_by(signal.SIGTERM) if _by_exit(error) else None
        shut_down()
        _end_raylet()
        if stopped:
            raise stopped from error
        if isinstance(error, Exception) and not isinstance(error, JobError):
            raise InfrastructureError(f"{what}: {_first_lines(error)}") from error
        raise


def init(address: str, **options: Any) -> None:
    """Call ``ray.init`` and restore the job's signal handlers. The ranks' output stays in files, which errors name."""
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    finally:
        # ray.init replaces the job's SIGTERM handler by one that raises SystemExit.
        keep_signals()
    raise_if_stopped()


def shut_down() -> None:
    """Call ``ray.shutdown`` and wait 20 s at most; signals are held back."""
    # In a thread, as Ray's calls may never return when the cluster is gone.
    thread = threading.Thread(target=ray.shutdown, name="ray-shutdown", daemon=True)
    deadline = time.monotonic() + _SHUTDOWN_TIMEOUT_S
    with signals_held():
        thread.start()
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(_KEEP_INTERVAL_S)
            # Ray's C++ code resets SIGTERM to the system's default, which would kill the job without a RESULT line.
            keep_signals()
    if thread.is_alive():
        logger.warning("ray.shutdown() didn't return within %g s", _SHUTDOWN_TIMEOUT_S)


def _first_lines(error: Exception) -> str:
    """Text of the error without the traceback that Ray may append."""
    text, _, _ = str(error).partition("Last connection error:")
    return f"{type(error).__name__}: {one_line(text)}"


def _by_exit(error: BaseException | None) -> bool:
    """Return whether a ``SystemExit`` caused the error: Ray's C++ code turns it into others."""
    return isinstance(error, SystemExit) or (error is not None and _by_exit(error.__cause__ or error.__context__))


def _end_raylet() -> None:
    """End the raylet of an interrupted ``ray.init``, which ``ray.shutdown`` doesn't know."""
    # Otherwise it is killed with the job, and its agents live on for a minute; SIGTERM makes it end them.
    deadline = time.monotonic() + _RAYLET_TIMEOUT_S
    with contextlib.suppress(OSError):
        children = Path(f"/proc/self/task/{threading.main_thread().native_id}/children").read_text().split()
        raylets = [int(pid) for pid in children if _is_raylet(pid)]
        for pid in raylets:
            os.kill(pid, signal.SIGTERM)
        while any(map(_is_raylet, raylets)) and time.monotonic() < deadline:
            time.sleep(_KEEP_INTERVAL_S)


def _is_raylet(pid: int | str) -> bool:
    """Return whether the process is a raylet and not a zombie."""
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    return name == "raylet" and rest.split()[0] != "Z"
