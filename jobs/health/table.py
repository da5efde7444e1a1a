"""The findings as a table; equal findings at several places share a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.health.finding import Finding, Verdict

_STYLES = {Verdict.ok: "green", Verdict.unknown: "dim", Verdict.warn: "yellow", Verdict.fail: "bold red"}
# Width if the output is no terminal; wrapped lines are hard to search.
_LOG_WIDTH = 180
_MAX_PLACES = 4


def print_findings(findings: Sequence[Finding], stream: TextIO) -> None:
    """Print a row for each distinct finding, then the number of findings of each verdict."""
    console = Console(file=stream, highlight=False)
    if not console.is_terminal:
        console.width = _LOG_WIDTH
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("check", "where", "found", "verdict", "what to do"):
        table.add_column(title, overflow="fold")
    for finding, places in _grouped(findings):
        # Text, because brackets in a plain string are markup.
        cells = [Text(text) for text in (finding.check, _named(places), finding.found, finding.verdict.value)]
        cells[-1].stylize(_STYLES[finding.verdict])
        table.add_row(*cells, Text(finding.mend))
    with console.capture() as captured:
        console.print(table)
    # Strip the blanks that fill the last column.
    print("\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines()), file=stream)
    counts = Counter(finding.verdict for finding in findings)
    print("# " + ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict), file=stream, flush=True)


def _grouped(findings: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    groups: dict[tuple[str, str, Verdict, str], tuple[Finding, list[str]]] = {}
    for finding in findings:
        key = (finding.check, finding.found, finding.verdict, finding.mend)
        groups.setdefault(key, (finding, []))[1].append(finding.where)
    checks = list(dict.fromkeys(finding.check for finding in findings))
    return sorted(groups.values(), key=lambda group: checks.index(group[0].check))


def _named(places: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(places))
    rest = len(distinct) - _MAX_PLACES
    return ", ".join(distinct[:_MAX_PLACES]) + (f" and {rest} more" if rest > 0 else "")
