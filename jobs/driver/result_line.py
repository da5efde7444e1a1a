"""The last line of standard output, for programs: ``ray job submit`` itself exits 1 for whatever failed."""

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
    """``RESULT {json}``, always one line, the keys in this order.

    Args:
      status: ``ok``, or why the job ended otherwise.
      exit_code: what the process exits with.
      run_dir: the run directory, absolute; ``None`` where the job ended before it had one.
      rows: number of rows in the journal.
      wandb_dir: directory of the W&B run, absolute; ``None`` where there is none.
      more: further keys, behind these.
    """
    fields = {"status": status, "exit_code": exit_code, "run_dir": run_dir, "rows": rows, "wandb_dir": wandb_dir}
    return PREFIX + json.dumps(json_safe({**fields, **more}), allow_nan=False)
