"""A comparison as Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.comparison.cells import LEFT_ALIGNED, TITLES, cells
from jobs.comparison.comparison import Comparison
from jobs.comparison.statistics import Verdict

_BOLD = (Verdict.slower, Verdict.faster)


def markdown(comparison: Comparison) -> str:
    """Title, regressions, warnings and table; the rest is folded."""
    blocks = [f"### {comparison.title}"]
    blocks += [_list([f"**Regression**: {_escaped(line)}" for line in comparison.regressions])]
    blocks += [_list([f"**Warning**: {_escaped(line)}" for line in comparison.warnings])]
    if comparison.rows:
        blocks.append(_table(comparison))
    details = [*comparison.sides, *(comparison.explanation if comparison.rows else [])]
    blocks.append(_folded("What was compared", details))
    blocks.append(_folded(f"Not compared: {len(comparison.left_out)}", comparison.left_out))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _table(comparison: Comparison) -> str:
    lines = [_line(TITLES), _line([":--" if title in LEFT_ALIGNED else "--:" for title in TITLES])]
    for row in comparison.rows:
        *values, verdict = map(_escaped, cells(row))
        lines.append(_line([*values, f"**{verdict}**" if row.verdict in _BOLD else verdict]))
    return "\n".join(lines)


def _line(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _folded(summary: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f"<details><summary>{summary}</summary>\n\n{_list([_escaped(line) for line in lines])}\n\n</details>"


def _escaped(text: str) -> str:
    """Escape Markdown's marks: names and reasons are plain text."""
    for mark in "\\`*_|<>[]":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())
