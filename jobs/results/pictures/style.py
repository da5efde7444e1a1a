"""How the pictures look: every implementation keeps its fill, hatch and marker, and needs no colour to be known."""

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
# Of a letter on average, and of an entry of a legend besides its label.
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
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    # A dollar in a name is a dollar.
    "text.parse_math": False,
    # The same rows give the same file.
    "svg.hashsalt": "cmkernel",
}


@dataclasses.dataclass(frozen=True)
class Look:
    """Of one implementation: ``fill`` behind ``hatch`` for bars, ``marker`` for points."""

    fill: str
    hatch: str
    marker: str


# Fills from dark to light, so that a grey print keeps them apart; hatches tell the light ones from each other.
_LOOKS = {
    "mosaic_gpu": Look("#0b3c6f", "", "o"),
    "mosaic_gpu_simple": Look("#3f83bf", "///", "s"),
    "jax_ring": Look("#7fb8dc", "...", "P"),
    "ppermute": Look("#c46a1b", "\\\\\\", "^"),
    "ppermute_two_level": Look("#e3a25c", "xx", "v"),
    "torch_fused": Look("#8a6bb1", "--", "X"),
    "xla": Look("#f2d9a0", "++", "D"),
    "xla_cublas": Look("#f9efd3", "**", "d"),
    "local": Look("#e4e4e4", "", "h"),
    "local_cublas": Look("#f4f4f4", "..", "p"),
}
_OTHER = Look("#b5b5b5", "oo", "*")


def look(implementation: str) -> Look:
    """Of ``implementation``; those without a look of their own share one."""
    return _LOOKS.get(implementation, _OTHER)


def rank_of(implementation: str) -> tuple[int, str]:
    """Sort key: the project's kernels first, the multiplies without communication last."""
    names = list(_LOOKS)
    return names.index(implementation) if implementation in _LOOKS else len(names), implementation


@contextmanager
def house_style() -> Iterator[None]:
    """Everything is drawn and saved within this."""
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
    """A figure ``width`` inches wide with that many axes of ``height`` inches, in lines of ``num_columns``.

    ``left`` and ``right`` are the inches beside each column for its labels, ``margin`` those left of the first one
    besides, ``gap`` those between lines for titles and ticks. Above all of them is room for ``head``.
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
    """Inches that tick labels need, the longest one of ``labels``, at most 4."""
    return min(0.2 + 0.076 * max(map(len, labels), default=0), 4.0)


def head(figure: Figure, title: str, about: str, handles: Sequence[Artist]) -> None:
    """At the top left: what is seen, what all of it has in common, and the legend, if any; both may take two lines."""
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
