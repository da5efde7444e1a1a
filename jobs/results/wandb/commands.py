"""Shell commands for a user who wants to see the run; each works as it is printed, in any shell and folder."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path


def browse_command(directory: Path) -> str:
    """Command that shows a run in the terminal, without an account."""
    return f"{_wandb()} leet {shlex.quote(str(directory))}"


def sync_command(directory: Path, key_file: str | None = None) -> str:
    """Command that uploads a run to the job's server, with the key from ``key_file``, if any."""
    url = os.environ.get("WANDB_BASE_URL")
    words = [f"WANDB_BASE_URL={shlex.quote(url)}"] if url else []
    if key_file is not None:
        path = Path(key_file).expanduser().absolute()
        words.append(f'WANDB_API_KEY="$(cat {shlex.quote(str(path))})"')
    words += [_wandb(), "sync", shlex.quote(str(directory))]
    # Without it `wandb sync` skips a run whose server was lost: its folder is that of an online run.
    if not directory.name.startswith("offline-"):
        words.append("--include-online")
    return " ".join(words)


def _wandb() -> str:
    """``wandb`` beside this Python: a shell may find another one, or none."""
    beside = Path(sys.executable).with_name("wandb")
    return shlex.quote(str(beside)) if beside.exists() else "wandb"
