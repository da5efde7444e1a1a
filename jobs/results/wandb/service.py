"""W&B's service process ``wandb-core``, a child of the driver."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path

from jobs.results.wandb.bounded import call_within

logger = logging.getLogger(__name__)

SERVICE_NAME = "wandb-core"
_KILL_LIMIT_S = 5.0


def end(limit_s: float) -> bool:
    """End the service, or kill it where it can't be ended within ``limit_s`` seconds. Raises nothing.

    Returns:
      False where it was killed: the last second of an offline run may be missing then.
    """
    # The attribute is missing while another thread still imports wandb.
    teardown = getattr(sys.modules.get("wandb"), "teardown", None)
    if teardown is None:
        return True
    # A dead service makes the first call fail early; only the second one forgets the session's credentials.
    for _ in range(2):
        try:
            call_within(limit_s, teardown)
            return True
        except TimeoutError:
            break
        except Exception as error:
            logger.info("ending W&B's service failed: %s", error)
    # A service that lives on would hold this job's standard output open.
    pids = service_pids()
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    # The kernel needs a moment.
    deadline_s = time.monotonic() + _KILL_LIMIT_S
    while service_pids() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return not pids


def service_pids() -> set[int]:
    """Find the service processes that this process has started, as far as /proc lists them."""
    pids: set[int] = set()
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids.update(map(int, children.read_text().split()))
    return {pid for pid in pids if _program(pid) == SERVICE_NAME}


def _program(pid: int) -> str | None:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:  # it has ended
        return None
