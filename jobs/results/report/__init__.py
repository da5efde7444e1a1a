"""``report.html`` of one or several runs, with their pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jobs.errors import InfrastructureError
from jobs.results import pictures
from jobs.results.disk.recorded_run import RecordedRun
from jobs.results.pictures import Drawn
from jobs.results.report.page import page

PAGE_NAME = "report.html"


@dataclasses.dataclass(frozen=True)
class Report:
    """The files of a report."""

    page: Path
    drawn: Drawn
    """The pictures with their paths, for W&B too."""


def write_report(runs: Sequence[RecordedRun], folder: Path) -> Report:
    """Draw ``runs``, of the same devices, into ``folder``/pictures and write ``folder``/report.html.

    Raises:
      InfrastructureError: the folder can't be written to.
    """
    try:
        rows = [row for run in runs for row in run.rows]
        drawn = pictures.draw(rows, runs[0].device_kind, folder / pictures.FOLDER)
        path = folder / PAGE_NAME
        path.write_text(page(runs, drawn))
    except OSError as error:
        raise InfrastructureError(f"{folder}: the report can't be written ({error})") from error
    return Report(path, drawn)
