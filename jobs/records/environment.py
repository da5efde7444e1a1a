"""Where and how a job ran: what environment.json and the W&B config say about it."""

from __future__ import annotations

import getpass
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def environment(submitted_git_sha: str | None) -> dict[str, Any]:
    """Command, code and machine of the driver. No environment variable's value is part of it: some are secrets.

    ``submitted_git_sha`` is the commit of a submitted job, whose upload has no history of its own.
    """
    # What ``python -m`` runs: jobs.bench, jobs.tune, ...
    started = sys.modules["__main__"].__spec__
    return {
        "command": " ".join(["python", *(["-m", started.name] if started else sys.argv[:1]), *sys.argv[1:]]),
        "git_sha": submitted_git_sha or git_sha(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "driver_host": socket.gethostname(),
        "user": getpass.getuser(),
    }


def git_sha() -> str | None:
    """Commit of the checkout that the job runs from, ``-dirty`` behind it where files differ; ``None`` outside one."""
    folder = Path(__file__).resolve().parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--match="]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None


def short_sha(sha: str) -> str:
    """A commit as people write it; what stands behind its 40 digits stays."""
    return sha[:12] + sha[40:]
