"""The tables of a report as HTML. Every text goes through ``html.escape``: configs and errors may hold anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from jobs.records.row import Row
from jobs.results.disk.recorded_run import RecordedRun
from jobs.results.report import facts
from jobs.results.terminal import table
from jobs.results.wandb import per_rank

# Columns of words are aligned left; sentences are broken into lines.
_WORDS = {
    "case",
    "name",
    "type",
    "dtype",
    "integers",
    "implementation",
    "requested",
    "host",
    "device",
    "run",
    "island",
    "failed ranks",
    "throttle_reasons",
}
_SENTENCES = {"reason", "config", "value"}
# Numbers without an exponent; the group holds the point and what follows.
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_CASE = ("case", "m_shard", "k", "n_shard", "type", "D", "implementation")


def results(runs: Sequence[RecordedRun]) -> str:
    """The table of the terminal with all its columns; in front the run and the island, where there are several."""
    origins, rows = _origins(runs)
    lines = [[*origin, *table.cells(row)] for origin, row in rows]
    return html_table([*((title, "") for title in origins), *table.titles()], lines, [_state(row) for _, row in rows])


def failures(runs: Sequence[RecordedRun]) -> str:
    """Findings of each failed check; empty where none failed."""
    origins, rows = _origins(runs)
    titles = [
        *origins,
        *_CASE,
        "failed ranks",
        "wrong elements",
        "of",
        "largest error",
        "relative error",
        "tolerance",
        "integers",
    ]
    lines = [
        [
            *origin,
            *_case(row),
            ", ".join(map(str, row.check.failed_ranks)),
            str(row.check.num_wrong),
            str(row.check.num_elements),
            f"{row.check.max_error:.3g}",
            f"{row.check.relative_error:.3g}",
            f"{row.check.relative_tolerance:.3g}",
            row.check.integers,
        ]
        for origin, row in rows
        if row.check and row.failed
    ]
    return html_table([(title, "") for title in titles], lines, ["failed"] * len(lines)) if lines else ""


def configs(runs: Sequence[RecordedRun]) -> str:
    """Each row's implementation, config and reason; also why it didn't run."""
    origins, rows = _origins(runs)
    titles = [*origins, *_CASE, "requested", "config", "reason"]
    lines = [
        [
            *origin,
            *_case(row),
            row.requested,
            " ".join(f"{name}={value}" for name, value in (row.config or {}).items()) or "-",
            row.reason or "-",
        ]
        for origin, row in rows
    ]
    return html_table([(title, "") for title in titles], lines, [_state(row) for _, row in rows])


def ranks(run: RecordedRun) -> str:
    """Medians of each rank in microseconds, and the state of its GPU; empty where the ranks aren't recorded."""
    lines = []
    for row in run.rows:
        ranked = per_rank.lines(row, run.members_of(row)) if row.samples_us else []
        lines += [[_text(value) for value in line] for line in ranked]
    return html_table([(title, "") for title in per_rank.COLUMNS], lines) if lines else ""


def environment(run: RecordedRun) -> str:
    """Names and values of ``environment.json``; empty where there is none."""
    lines = [[name, _text(value)] for name, value in facts.environment(run)]
    return html_table([("name", ""), ("value", "")], lines) if lines else ""


def html_table(
    titles: Sequence[tuple[str, str]], lines: Sequence[Sequence[str]], states: Sequence[str] | None = None
) -> str:
    """A sortable table in a box of its own that scrolls.

    Args:
      titles: a title and a unit for each column.
      lines: a text for each column.
      states: the CSS class of each line.
    """
    kinds = [_kind(title) for title, _ in titles]
    head = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{escape(title)}</button>'
        f"<small>{escape(unit)}</small></th>"
        for (title, unit), kind in zip(titles, kinds, strict=True)
    )
    pads = list(zip(*map(_pads, zip(*lines, strict=True)), strict=True))
    body = "\n".join(
        f'<tr class="{state}">'
        + "".join(
            f'<td class="{kind}"{pad}>{escape(cell)}</td>'
            for cell, kind, pad in zip(line, kinds, line_pads, strict=True)
        )
        + "</tr>"
        for line, line_pads, state in zip(lines, pads, states or [""] * len(lines), strict=True)
    )
    return (
        f'<div class="wide" tabindex="0"><table class="sortable">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _pads(cells: Sequence[str]) -> list[str]:
    """Attributes with the invisible digits that put the decimal points of a column below each other."""
    numbers = [_NUMBER.fullmatch(cell) for cell in cells]
    longest = max((len(number[1] or "") for number in numbers if number), default=0)
    zeros = "." + "0" * longest
    pads = [zeros[len(number[1] or "") : longest] if number else "" for number in numbers]
    return [f' data-pad="{pad}"' if pad else "" for pad in pads]


def _origins(runs: Sequence[RecordedRun]) -> tuple[list[str], list[tuple[list[str], Row]]]:
    """Titles of the columns that say where a row is from, and each row with its cells there.

    Several runs have a column with their names, or their paths where two have the same name; islands have a column.
    """
    several, islands = len(runs) > 1, any(row.island is not None for run in runs for row in run.rows)
    unique = len({run.path.name for run in runs}) == len(runs)
    rows: list[tuple[list[str], Row]] = []
    for run in runs:
        name = run.path.name if unique else str(run.path)
        rows += [([*([name] if several else []), *([row.island or "-"] if islands else [])], row) for row in run.rows]
    return [*(["run"] if several else []), *(["island"] if islands else [])], rows


def _kind(title: str) -> str:
    return "text long" if title in _SENTENCES else "text" if title in _WORDS else ""


def _state(row: Row) -> str:
    return "failed" if row.failed else "not_run" if row.check is None else ""


def _case(row: Row) -> list[str]:
    case = row.case
    return [
        case.label,
        *map(str, (case.m_shard, case.k, case.n_shard)),
        case.types,
        str(case.num_ranks),
        row.implementation,
    ]


def _text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
