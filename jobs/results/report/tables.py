"""The tables of a report as HTML. Every text goes through ``html.escape``: configs and errors may hold anything."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from jobs.records.row import Row
from jobs.results.disk.recorded_run import RecordedRun
from jobs.results.terminal import table
from jobs.results.wandb import per_rank

# Columns of words, which are aligned left, and of sentences, which are broken into lines.
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
_CASE = ("case", "m_shard", "k", "n_shard", "type", "D", "implementation")


def results(runs: Sequence[RecordedRun]) -> str:
    """The table of the terminal, with the run's name in front where there are several, and the island's."""
    origins, found = _origins(runs)
    lines = [[*origin, *table.cells(row)] for origin, row in found]
    return html_table([*((title, "") for title in origins), *table.titles()], lines, [_state(row) for _, row in found])


def failures(runs: Sequence[RecordedRun]) -> str:
    """What each failed check found; empty where none failed."""
    origins, found = _origins(runs)
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
            "exact" if row.check.integers_exact else "not exact",
        ]
        for origin, row in found
        if row.check and row.failed
    ]
    return html_table([(title, "") for title in titles], lines, ["failed"] * len(lines)) if lines else ""


def configs(runs: Sequence[RecordedRun]) -> str:
    """What ran in each row, with which config, and why; also why it didn't."""
    origins, found = _origins(runs)
    titles = [*origins, *_CASE, "requested", "config", "reason"]
    lines = [
        [
            *origin,
            *_case(row),
            row.requested,
            " ".join(f"{name}={value}" for name, value in (row.config or {}).items()) or "-",
            row.reason or "-",
        ]
        for origin, row in found
    ]
    return html_table([(title, "") for title in titles], lines, [_state(row) for _, row in found])


def ranks(run: RecordedRun) -> str:
    """Medians of each rank in microseconds, and the state of its GPU; empty where the ranks aren't known."""
    lines = []
    for row in run.rows:
        members = run.members_of(row)
        lines += [[_told(value) for value in line] for line in per_rank.lines(row, members) if row.samples_us]
    return html_table([(title, "") for title in per_rank.COLUMNS], lines) if lines else ""


def environment(run: RecordedRun) -> str:
    """Names and values, those of nested ones under dotted names."""
    lines = [[name, _told(value)] for name, value in _leaves(run.environment.to_json())]
    return html_table([("name", ""), ("value", "")], lines)


def html_table(
    titles: Sequence[tuple[str, str]], lines: Sequence[Sequence[str]], states: Sequence[str] | None = None
) -> str:
    """A sortable table; ``titles`` are a title and a unit for each column, ``states`` the class of each line."""
    kinds = [_kind(title) for title, _ in titles]
    head = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{html.escape(title)}</button>'
        f"<small>{html.escape(unit)}</small></th>"
        for (title, unit), kind in zip(titles, kinds, strict=True)
    )
    body = "\n".join(
        f'<tr class="{state}">'
        + "".join(f'<td class="{kind}">{html.escape(cell)}</td>' for cell, kind in zip(line, kinds, strict=True))
        + "</tr>"
        for line, state in zip(lines, states or [""] * len(lines), strict=True)
    )
    return (
        f'<div class="wide"><table class="sortable">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _origins(runs: Sequence[RecordedRun]) -> tuple[list[str], list[tuple[list[str], Row]]]:
    """Titles of the columns that say where a row is from, and each row with its cells there.

    Where there are several runs, their names, or their paths where names are the same; where there are islands, those.
    """
    several, islands = len(runs) > 1, any(row.island is not None for run in runs for row in run.rows)
    unique = len({run.path.name for run in runs}) == len(runs)
    found = []
    for run in runs:
        name = run.path.name if unique else str(run.path)
        found += [([*([name] if several else []), *([row.island or "-"] if islands else [])], row) for row in run.rows]
    return [*(["run"] if several else []), *(["island"] if islands else [])], found


def _kind(title: str) -> str:
    return "text long" if title in _SENTENCES else "text" if title in _WORDS else ""


def _state(row: Row) -> str:
    return "failed" if row.failed else "not_run" if row.check is None else ""


def _case(row: Row) -> list[str]:
    case = row.case
    return [
        case.name,
        *map(str, (case.m_shard, case.k, case.n_shard)),
        case.dtype,
        str(case.num_ranks),
        row.implementation,
    ]


def _told(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _leaves(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        items = [(f"{name}.{key}" if name else str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    else:
        return [(name, value)]
    return [leaf for key, item in items for leaf in _leaves(item, key)]
