"""What surrounds W&B on the driver's machine: the key's file, the service process, the commands for a user."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

from jobs.errors import UsageError

SERVICE_NAME = "wandb-core"


def read_key_file(name: str | None) -> str | None:
    """The API key in the file that ``wandb.api_key_file`` names; ``None`` where it names none.

    Raises:
      UsageError: the file can't be read, or holds no single word.
    """
    if name is None:
        return None
    path = Path(name).expanduser()
    try:
        words = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(f"wandb.api_key_file={name}: can't be read on the driver's node ({reason})") from error
    if len(words) != 1:
        found = "is empty" if not words else f"has {len(words)} words"
        raise UsageError(f"wandb.api_key_file={name}: {found}; it must hold the API key and nothing else")
    return words[0]


def service_pids() -> set[int]:
    """W&B's service processes that this process has started, as far as /proc tells."""
    found: set[int] = set()
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, children.read_text().split()))
    return {pid for pid in found if _program(pid) == SERVICE_NAME}


def kill_services() -> None:
    """End service processes that don't end when asked: they would hold this job's standard output open."""
    for pid in service_pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _program(pid: int) -> str | None:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:  # it has ended
        return None


def browse_command(directory: Path) -> str:
    """Shell command that shows a run in the terminal, without an account."""
    return f"{_wandb()} leet {shlex.quote(str(directory))}"


def sync_command(directory: Path) -> str:
    """Shell command that uploads a run."""
    return f"{_wandb()} sync {shlex.quote(str(directory))}"


def _wandb() -> str:
    """Where the user's shell doesn't find ``wandb``, the one beside this Python."""
    beside = Path(sys.executable).with_name("wandb")
    return shlex.quote(str(beside)) if shutil.which("wandb") is None and beside.exists() else "wandb"
