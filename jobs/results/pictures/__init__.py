"""Pictures of a run's rows, PNG and SVG: the only place that needs matplotlib."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from jobs.records.row import Row
from jobs.results.pictures import landscape, ranks, ring_timeline, style, times, utilisation

logger = logging.getLogger(__name__)

FOLDER = "pictures"
_DPI = 150


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of picture."""

    name: str
    """File name without its ending."""
    caption: str
    figure: Callable[[Sequence[Row], str | None], Figure | None]
    """Takes the rows and the kind of their devices; returns ``None`` where the rows have nothing to show."""


KINDS = (
    Kind("time_against_bound", "Time of each implementation, beside the multiply alone.", times.figure),
    Kind("utilisation", "Share of the tensor cores' peak, by the size of the problem.", utilisation.figure),
    Kind("ranks", "Every sample of every rank: the spread, and which rank is late.", ranks.figure),
    Kind("tuning_landscape", "Time by each option of the kernel's config.", landscape.figure),
    Kind(
        "ring_timeline",
        "When each shard arrives and is multiplied: measured by the kernel, or from the model.",
        ring_timeline.figure,
    ),
)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture that was drawn."""

    name: str
    caption: str
    png: Path
    svg: Path


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Result of ``draw``."""

    pictures: tuple[Picture, ...]
    failures: dict[str, str]
    """Error by the name of a picture that could not be drawn: a bug."""


def draw(rows: Sequence[Row], device_kind: str | None, folder: Path) -> Drawn:
    """Make ``folder`` and draw all pictures of ``rows`` into it; one that fails is logged and left out.

    Raises:
      OSError: the folder can't be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures, failures = [], {}
    for kind in KINDS:
        try:
            with style.house_style():
                picture = _draw(kind, rows, device_kind, folder)
        except Exception as error:
            logger.exception("the picture %s can't be drawn", kind.name)
            failures[kind.name] = f"{type(error).__name__}: {error}"
            continue
        if picture:
            pictures.append(picture)
    return Drawn(tuple(pictures), failures)


def _draw(kind: Kind, rows: Sequence[Row], device_kind: str | None, folder: Path) -> Picture | None:
    figure = kind.figure(rows, device_kind)
    if figure is None:
        return None
    picture = Picture(kind.name, kind.caption, folder / f"{kind.name}.png", folder / f"{kind.name}.svg")
    figure.savefig(picture.png, dpi=_DPI)
    # Without its date, the same rows give the same file.
    figure.savefig(picture.svg, metadata={"Date": None})
    return picture
