"""A comparison on a terminal: a line for each case, everything else behind ``#``."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from jobs.comparison.cells import LEFT_ALIGNED, TITLES, cells
from jobs.comparison.comparison import Comparison
from jobs.comparison.statistics import Verdict

_STYLES = {Verdict.slower: "bold red", Verdict.faster: "bold green", Verdict.too_few_runs: "yellow"}


def text(comparison: Comparison, *, colour: bool) -> str:
    """The whole comparison. Lines aren't wrapped, even where the terminal is narrower."""
    lines = [*comparison.sides, *(f"WARNING: {line}" for line in comparison.warnings)]
    if comparison.rows:
        lines += comparison.explanation
    after = [f"Not compared: {line}" for line in comparison.left_out] + [comparison.title]
    after += [f"REGRESSION: {line}" for line in comparison.regressions]
    blocks = ["".join(f"# {line}\n" for line in lines)]
    if comparison.rows:
        blocks.append(_table(comparison, colour=colour))
    blocks.append("".join(f"# {line}\n" for line in after))
    return "#\n".join(blocks)


def _table(comparison: Comparison, *, colour: bool) -> str:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in TITLES:
        table.add_column(title, justify="left" if title in LEFT_ALIGNED else "right", no_wrap=True)
    for row in comparison.rows:
        table.add_row(*cells(row), style=_STYLES.get(row.verdict))
    return rendered(table, colour=colour)


def rendered(table: Table, *, colour: bool) -> str:
    """The table as text, as wide as its cells."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=colour, color_system="standard" if colour else None, width=10_000)
    console.width = console.measure(table).maximum
    console.print(table)
    return "".join(line.rstrip() + "\n" for line in stream.getvalue().splitlines())
