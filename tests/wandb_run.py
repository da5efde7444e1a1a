"""A W&B run on disk, read by W&B's own command line: ``inspect(folder)``, also while the run goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path


def inspect(wandb_dir: str | Path, *options: str) -> list[dict]:
    """The records that ``wandb leet inspect --json`` prints; with ``--summary`` a single one."""
    leet = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", *options, str(wandb_dir)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    done = subprocess.run(leet, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    lines = [done.stdout] if "--summary" in options else done.stdout.splitlines()
    return [json.loads(line) for line in lines]


def history(wandb_dir: str | Path) -> list[dict]:
    """The steps of the run that are rows of the job."""
    items = [record["history"]["item"] for record in inspect(wandb_dir) if record["type"] == "history"]
    return [item for item in items if "case/name" in item]
