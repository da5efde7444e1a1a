"""The page ``report.html``: one file that holds all it shows, and opens without a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from jobs.records.row import Row
from jobs.results.analysis import soaking
from jobs.results.analysis.answers import answers
from jobs.results.analysis.standings import standings
from jobs.results.disk.recorded_run import RecordedRun
from jobs.results.pictures import Drawn, Picture
from jobs.results.report import facts, tables

_HERE = Path(__file__).parent


def page(runs: Sequence[RecordedRun], drawn: Drawn) -> str:
    """The whole page of one run, or of several of the same devices.

    Raises:
      OSError: a picture can't be read.
    """
    verdict, verdict_class = _verdict([row for run in runs for row in run.rows])
    script = (_HERE / "sort.js").read_text()
    sections = [
        ("Answers", _answers(runs)),
        *(_summaries(runs[0]) if len(runs) == 1 else []),
        ("Pictures", _pictures(drawn)),
        ("Failed checks", tables.failures(runs)),
        ("Results", tables.results(runs) + _NOTE),
        ("What ran", tables.configs(runs)),
        *(_how(run, f" of {run.path}" if len(runs) > 1 else "") for run in runs),
    ]
    return Template((_HERE / "page.html").read_text()).substitute(
        title=escape(facts.title(runs)),
        verdict=escape(verdict),
        verdict_class=verdict_class,
        facts="\n".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.facts(runs)),
        body="\n".join(f"<h2>{escape(title)}</h2>\n{text}" for title, text in sections if text),
        script=script,
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


_NOTE = """
<p class="note">Click a title to sort. Times are in microseconds: each rank's median, of the slowest rank; min: of the
fastest rank. The columns from TF/s on are computed from in_graph_us, the time t of a call inside a program of dependent
calls. x local: t over the multiply alone. speedup: all-gather then dot over t. overlap: share of the communication
that is hidden. bound: the JAX tutorial's, local + 6 us for each of the D - 1 exchanges.</p>
"""


def _verdict(rows: Sequence[Row]) -> tuple[str, str]:
    failed = sum(row.failed for row in rows)
    not_run = sum(row.check is None for row in rows)
    checked = len(rows) - not_run
    aside = f"; {not_run} of {len(rows)} rows not run" if not_run else ""
    if not checked:
        return "Nothing was checked" + aside, "failed"
    if failed:
        return f"FAILED: {failed} of {checked} checks" + aside, "failed"
    return f"All {checked} checks passed" + aside, "passed"


def _answers(runs: Sequence[RecordedRun]) -> str:
    """A sentence for each case of each run."""
    lists = []
    for run in runs:
        name = f"<h3>{escape(str(run.path))}</h3>\n" if len(runs) > 1 else ""
        sentences = [f"<li>{escape(answer.sentence)}</li>" for answer in answers(run.rows)]
        if sentences:
            lists.append(f'{name}<ul class="answers">\n{"\n".join(sentences)}\n</ul>')
    return "\n".join(lists)


def _summaries(run: RecordedRun) -> list[tuple[str, str]]:
    """The lines about islands and soak with which the job ended."""
    ranked = standings(run.rows, outlier_z=facts.outlier_z(run))
    summaries = [("Islands", ranked.lines() if ranked.num_islands else []), ("Soak", soaking.lines(run.soak))]
    # Without the marks of the terminal's comments, and the empty one that comes first.
    return [
        (title, f"<pre>{escape('\n'.join(line[2:] for line in lines[1:]))}</pre>")
        for title, lines in summaries
        if lines
    ]


def _pictures(drawn: Drawn) -> str:
    figures = [
        f'<figure id="{picture.name}"><figcaption>{escape(picture.caption)}</figcaption>\n'
        f'<div class="card"><img tabindex="0" alt="{escape(picture.caption)}" src="{_data(picture)}"></div></figure>'
        for picture in drawn.pictures
    ]
    figures += [f"<p>{escape(f'{name} could not be drawn: {why}')}</p>" for name, why in drawn.failures.items()]
    return "\n".join(figures)


def _data(picture: Picture) -> str:
    # A browser that forces dark pages turns black text white, but leaves the picture's white ground: this forbids it.
    light = picture.svg.read_bytes().replace(b"<svg ", b'<svg style="color-scheme: only light" ', 1)
    return f"data:image/svg+xml;base64,{base64.b64encode(light).decode()}"


def _how(run: RecordedRun, of_run: str) -> tuple[str, str]:
    """The command, and folded what only some readers need."""
    folded = [
        ("Each rank's medians", tables.ranks(run)),
        ("Environment", tables.environment(run)),
        ("Config", f"<pre>{escape(run.config)}</pre>" if run.config else ""),
    ]
    details = [f"<details><summary>{title}</summary>\n{text}\n</details>" for title, text in folded if text]
    return f"Command{of_run}", f"<pre>{escape(facts.command(run))}</pre>\n" + "\n".join(details)
