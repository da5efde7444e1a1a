"""Shell commands for a user who wants to see the run."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def browse_command(directory: Path) -> str:
    """Command that shows a run in the terminal, without an account."""
    return f"{_wandb()} leet {shlex.quote(str(directory))}"


def sync_command(directory: Path) -> str:
    """Command that uploads a run."""
    return f"{_wandb()} sync {shlex.quote(str(directory))}"


def _wandb() -> str:
    """``wandb``, or its path beside this Python where the user's shell doesn't find it."""
    beside = Path(sys.executable).with_name("wandb")
    return shlex.quote(str(beside)) if shutil.which("wandb") is None and beside.exists() else "wandb"
