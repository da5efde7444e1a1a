"""Look of the pictures: every implementation has one colour and one marker everywhere."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FAILED_COLOUR = "#b00020"
# More cases than that would be neither readable nor quick to draw.
MAX_CASES = 16
# Mean width of a letter, and the width of a legend entry without its label.
_INCHES_PER_LETTER, _LEGEND_INCHES = 0.072, 0.6
_RC: Any = {
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    # A dollar in a name is a dollar.
    "text.parse_math": False,
    # The same rows give the same file.
    "svg.hashsalt": "cmkernel",
}


@dataclasses.dataclass(frozen=True)
class Look:
    """``colour`` of an implementation's bars and lines, ``marker`` of its points."""

    colour: str
    marker: str


# The palette of Okabe and Ito (https://jfly.uni-koeln.de/color/), which colour-blind readers tell apart, with a brown
# and two greys. In black and white the lightness, the marker and the name beside each bar remain.
_LOOKS = {
    "mosaic_gpu": Look("#0072b2", "o"),
    "mosaic_gpu_simple": Look("#56b4e9", "s"),
    "jax_ring": Look("#009e73", "P"),
    "ppermute": Look("#d55e00", "^"),
    "ppermute_two_level": Look("#8c3d00", "v"),
    "torch_fused": Look("#cc79a7", "X"),
    "xla": Look("#e69f00", "D"),
    "xla_cublas": Look("#f0e442", "d"),
    "xla_sharded": Look("#b8860b", "<"),
    "xla_windowed": Look("#6b5b00", ">"),
    "local": Look("#8f8f8f", "h"),
    "local_cublas": Look("#cfcfcf", "p"),
}
_OTHER = Look("#4d4d4d", "*")
SAMPLE: Any = {"markerfacecolor": "none", "markeredgecolor": "#555555"}
"""Single measurements: hollow, so that those on top of each other show."""


def look(implementation: str) -> Look:
    """Colour and marker of ``implementation``; unknown ones share a look."""
    return _LOOKS.get(implementation, _OTHER)


def rank_of(implementation: str) -> tuple[int, str]:
    """Sort key: the project's kernels first, the multiplies without communication last."""
    names = list(_LOOKS)
    return names.index(implementation) if implementation in _LOOKS else len(names), implementation


def cut(name: str, letters: int = 20) -> str:
    """``name``, shortened in the middle to so many letters: hosts of a cluster differ at both ends."""
    half = (letters - 1) // 2
    return name if len(name) <= letters else f"{name[:half]}…{name[-half:]}"


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib settings within which every picture is drawn and saved."""
    with matplotlib.rc_context(_RC):
        yield


def panels(
    number: int,
    *,
    num_columns: int,
    height: float,
    width: float = 9.0,
    margin: float = 0.1,
    left: float = 1.5,
    right: float = 0.25,
    gap: float = 0.75,
) -> tuple[Figure, list[Axes]]:
    """A figure with ``number`` axes in lines of ``num_columns``, and room for ``head`` above them. All sizes in inches.

    Args:
      number: of axes.
      num_columns: axes side by side.
      height: of each of the axes.
      width: of the figure.
      margin: left of the first column, on top of its ``left``.
      left: left of each column, for tick labels.
      right: right of each column.
      gap: between two lines, for titles and ticks.
    """
    num_lines = math.ceil(number / num_columns)
    top, bottom = 1.25, 0.6
    total = top + num_lines * height + (num_lines - 1) * gap + bottom
    figure = Figure(figsize=(width, total))
    column = (width - margin - num_columns * (left + right)) / num_columns
    axes = []
    for index in range(number):
        line, place = divmod(index, num_columns)
        x = margin + place * (left + column + right) + left
        y = total - top - (line + 1) * height - line * gap
        axes.append(figure.add_axes((x / width, y / total, column / width, height / total)))
    return figure, axes


def label_width(labels: Iterable[str]) -> float:
    """Inches that the longest of the tick ``labels`` needs, at most 4."""
    return min(0.2 + 0.076 * max(map(len, labels), default=0), 4.0)


def head(figure: Figure, title: str, about: str, handles: Sequence[Artist]) -> None:
    """Write the title, what all panels have in common (``about``) and the legend at the top left."""
    width, height = figure.get_size_inches()
    figure.text(0.1 / width, 1 - 0.1 / height, title, va="top", fontsize=11, fontweight="bold")
    lines = textwrap.wrap(about, int((width - 0.2) / _INCHES_PER_LETTER), max_lines=2, placeholder=" ...")
    figure.text(0.1 / width, 1 - 0.34 / height, "\n".join(lines), va="top", color="#444444")
    if not handles:
        return
    needed = sum(_LEGEND_INCHES + _INCHES_PER_LETTER * len(str(handle.get_label())) for handle in handles)
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.1 / width, 1 - (0.35 + 0.155 * len(lines)) / height),
        ncols=len(handles) if needed < width else math.ceil(len(handles) / 2),
        fontsize=8,
        borderpad=0.2,
        borderaxespad=0.0,
        columnspacing=1.6,
    )
