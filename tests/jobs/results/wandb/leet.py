"""A run's files, read by `wandb leet`, as a user would."""

import json
import subprocess
import sys
from pathlib import Path

WANDB = Path(sys.executable).with_name("wandb")


def inspect(directory: Path, *options: str) -> list[dict]:
    """Records of a run, as `wandb leet inspect --json` prints them."""
    command = [WANDB, "leet", "inspect", "--json", *options, directory]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert found.returncode == 0, found.stderr
    return (
        [json.loads(found.stdout)]
        if "--summary" in options
        else [json.loads(line) for line in found.stdout.splitlines()]
    )


def history(directory: Path) -> list[dict]:
    items = [record["history"]["item"] for record in inspect(directory) if record["type"] == "history"]
    return [item for item in items if "case/name" in item]
