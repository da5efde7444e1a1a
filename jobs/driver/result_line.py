"""RESULT line for programs, the last of standard output, because ``ray job submit`` exits with 1 on any failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jobs.results.disk.json_safe import json_safe

PREFIX = "RESULT "


def result_line(
    status: str,
    exit_code: int,
    run_dir: str | Path | None,
    rows: int,
    wandb_dir: str | Path | None,
    **more: Any,
) -> str:
    """Format ``RESULT {json}``: one line, with the keys in this order.

    Args:
      status: ``ok``, or the kind of failure.
      exit_code: exit code of the process.
      run_dir: the run directory, absolute; ``None`` if the job ended before it had one.
      rows: number of rows in the journal.
      wandb_dir: directory of the W&B run, absolute; ``None`` if there is none.
      more: further keys, after these.
    """
    fields = {"status": status, "exit_code": exit_code, "run_dir": run_dir, "rows": rows, "wandb_dir": wandb_dir}
    return PREFIX + json.dumps(json_safe({**fields, **more}), allow_nan=False)
