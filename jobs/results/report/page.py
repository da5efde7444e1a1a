"""The page ``report.html``: one file that holds all it shows, and opens without a network."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from pathlib import Path
from string import Template

from jobs.records.row import Row
from jobs.results.analysis import soaking
from jobs.results.analysis.robust import DEFAULT_OUTLIER_Z
from jobs.results.analysis.standings import standings
from jobs.results.disk.recorded_run import RecordedRun
from jobs.results.pictures import Drawn
from jobs.results.report import tables

_HERE = Path(__file__).parent
# In the title.
_MAX_NAMES = 6


def page(runs: Sequence[RecordedRun], drawn: Drawn) -> str:
    """The whole page of one run, or of several of the same devices.

    Raises:
      OSError: a picture can't be read.
    """
    rows = [row for run in runs for row in run.rows]
    verdict, verdict_class = _verdict(rows)
    script = (_HERE / "sort.js").read_text()
    sections = [
        ("Results", tables.results(runs) + _NOTE),
        ("Failed checks", tables.failures(runs)),
        *(_summaries(runs[0]) if len(runs) == 1 else []),
        ("Pictures", _pictures(drawn)),
        ("What ran", tables.configs(runs)),
        *(section for run in runs for section in _about(run, str(run.path) if len(runs) > 1 else "")),
    ]
    return Template((_HERE / "page.html").read_text()).substitute(
        title=html.escape(_title(runs)),
        verdict=html.escape(verdict),
        verdict_class=verdict_class,
        body="\n".join(f"<h2>{html.escape(title)}</h2>\n{text}" for title, text in sections if text),
        script=script,
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


_NOTE = """
<p>Times: the slowest rank's median in microseconds; min: the fastest rank's. TF/s, util, /local, xla/, busbw and
overlap come from in_graph_us, a call inside a program of dependent calls. bound is the article's: local + 6 us for each
of the D - 1 exchanges. A click on a title sorts.</p>
"""


def _title(runs: Sequence[RecordedRun]) -> str:
    names = list(dict.fromkeys(row.case.name for run in runs for row in run.rows))
    members, device = runs[0].members, runs[0].device_kind
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"cmkernel: {', '.join(names[:_MAX_NAMES]) or 'no rows'}{more}" + (
        f" on {len(members)} x {device}" if device else ""
    )


def _verdict(rows: Sequence[Row]) -> tuple[str, str]:
    failed = sum(row.failed for row in rows)
    not_run = sum(row.check is None for row in rows)
    checked = len(rows) - not_run
    aside = f"; {not_run} of {len(rows)} rows not run" if not_run else ""
    if not checked:
        return "Nothing was checked" + aside, "failed"
    if failed:
        return f"FAILED: {failed} of {checked} checks" + aside, "failed"
    return f"All {checked} checks passed" + aside, ""


def _summaries(run: RecordedRun) -> list[tuple[str, str]]:
    """What the job printed at its end about islands and soak."""
    found = standings(run.rows, outlier_z=run.environment.outlier_z or DEFAULT_OUTLIER_Z)
    told = [("Islands", found.lines() if found.num_islands else []), ("Soak", soaking.lines(run.soak))]
    return [(title, f"<pre>{html.escape('\n'.join(lines[1:]))}</pre>") for title, lines in told if lines]


def _pictures(drawn: Drawn) -> str:
    figures = [
        f'<figure id="{picture.name}"><img alt="{html.escape(picture.caption)}" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(picture.svg.read_bytes()).decode()}"><figcaption>{html.escape(picture.caption)}</figcaption>'
        "</figure>"
        for picture in drawn.pictures
    ]
    figures += [f"<p>{html.escape(f'{name} could not be drawn: {why}')}</p>" for name, why in drawn.failures.items()]
    return "\n".join(figures)


def _about(run: RecordedRun, name: str) -> list[tuple[str, str]]:
    """Sections on how a run was made, titled with ``name``."""
    of_run = f" of {name}" if name else ""
    command = html.escape(run.environment.command or "not recorded")
    ranks = tables.ranks(run)
    folded = [
        ("Each rank's medians", ranks),
        ("Environment", tables.environment(run) if run.environment else ""),
        ("Config", f"<pre>{html.escape(run.config)}</pre>" if run.config else ""),
    ]
    details = [f"<details><summary>{title}</summary>\n{text}\n</details>" for title, text in folded if text]
    return [(f"Command{of_run}", f"<pre>{command}</pre>\n" + "\n".join(details))]
