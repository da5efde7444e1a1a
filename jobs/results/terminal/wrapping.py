"""Lines that people read, wrapped between words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console

# A log has no width of its own.
LOG_WIDTH = 120
_MIN_WIDTH = 40


def width_of(stream: TextIO) -> int:
    """Columns of the terminal behind ``stream``; ``LOG_WIDTH`` if there is none."""
    return max(Console(file=stream).width, _MIN_WIDTH) if stream.isatty() else LOG_WIDTH


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal behind ``stream``; ``None`` for a log, whose messages stay on one line each for grep."""
    return width_of(stream) if stream.isatty() else None


def wrapped(lines: Iterable[str], width: int | None) -> list[str]:
    """Break ``lines`` between words; a comment continues as an indented comment, and no word is broken."""
    if width is None:
        return list(lines)
    return [part for line in lines for part in _parts(line, width)]


def _parts(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    mark = "#" if line.startswith("#") else ""
    text = line.removeprefix(mark)
    indent = " " * (len(text) - len(text.lstrip(" ")))
    # A path or a GPU's name stays whole, so that it can be copied.
    return textwrap.wrap(
        text.strip(" "),
        width,
        initial_indent=mark + indent,
        subsequent_indent=f"{mark}{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
