"""Ray's start and end in this process, which a signal may stop at any moment."""

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
from ray.exceptions import RayError

from jobs.errors import InfrastructureError
from jobs.signals import keep_signals, raise_if_stopped, signals_held, stopped_by

logger = logging.getLogger(__name__)

_SHUTDOWN_TIMEOUT_S = 20.0
_KEEP_INTERVAL_S = 0.005
_RAYLET_TIMEOUT_S = 5.0


@contextlib.contextmanager
def connecting(what: str) -> Iterator[None]:
    """For ``init`` and what follows until somebody else is there to call ``shut_down``.

    Raises:
      InfrastructureError: Ray didn't start or can't be reached; the message begins with ``what``.
      JobStopped: a signal came meanwhile; what had been started is gone.
    """
    try:
        yield
    except BaseException as error:
        stopped = stopped_by(signal.SIGTERM) if _by_exit(error) else None
        shut_down()
        _end_raylet()
        if stopped:
            raise stopped from error
        if isinstance(error, (RayError, RuntimeError, ValueError, OSError)):
            raise InfrastructureError(f"{what}: {' '.join(str(error).split())}") from error
        raise


def init(address: str, **options: Any) -> None:
    """``ray.init`` under the job's signals. Output of the ranks stays in their files, which errors name."""
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    finally:
        # Before anything else it has put a handler of its own in the place of the job's, which raises SystemExit.
        keep_signals()
    raise_if_stopped()


def shut_down() -> None:
    """``ray.shutdown``, within 20 s; signals wait for it."""
    # In a thread: with the cluster gone, Ray's calls may not come back.
    thread = threading.Thread(target=ray.shutdown, name="ray-shutdown", daemon=True)
    deadline = time.monotonic() + _SHUTDOWN_TIMEOUT_S
    with signals_held():
        thread.start()
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(_KEEP_INTERVAL_S)
            # Ray's C++ code sets SIGTERM to what it does by default: it would kill the job, without a RESULT line.
            keep_signals()
    if thread.is_alive():
        logger.warning("ray.shutdown() didn't return within %g s", _SHUTDOWN_TIMEOUT_S)


def _by_exit(error: BaseException | None) -> bool:
    """Whether it is a SystemExit, or what Ray's C++ code made of one."""
    return isinstance(error, SystemExit) or (error is not None and _by_exit(error.__cause__ or error.__context__))


def _end_raylet() -> None:
    """End that of a ``ray.init`` that was interrupted, of which ``ray.shutdown`` knows nothing."""
    # It would be killed with the job, and its agents, which it ends where it is asked to, would stay for a minute.
    deadline = time.monotonic() + _RAYLET_TIMEOUT_S
    with contextlib.suppress(OSError):
        children = Path(f"/proc/self/task/{threading.main_thread().native_id}/children").read_text().split()
        raylets = [int(pid) for pid in children if _is_raylet(pid)]
        for pid in raylets:
            os.kill(pid, signal.SIGTERM)
        while any(map(_is_raylet, raylets)) and time.monotonic() < deadline:
            time.sleep(_KEEP_INTERVAL_S)


def _is_raylet(pid: int | str) -> bool:
    """Whether it is one that runs: nobody has waited yet for one that has ended."""
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    return name == "raylet" and rest.split()[0] != "Z"
