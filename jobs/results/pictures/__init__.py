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
    """Of its files, without the ending."""
    caption: str
    figure: Callable[[Sequence[Row], str | None], Figure | None]
    """From rows and the kind of their devices; ``None`` where the rows have nothing to show."""


KINDS = (
    Kind("time_against_bound", "Time of each implementation, and what the multiply alone takes.", times.figure),
    Kind("utilisation", "How much of the peak is used, by the size of the problem.", utilisation.figure),
    Kind("ranks", "How the samples of each rank spread, and which rank is late.", ranks.figure),
    Kind("tuning_landscape", "What each option of the kernel's config does to the time.", landscape.figure),
    Kind(
        "ring_timeline",
        "When each shard arrives and is multiplied: measured by the kernel itself, or from the model.",
        ring_timeline.figure,
    ),
)


@dataclasses.dataclass(frozen=True)
class Picture:
    """One that was drawn."""

    name: str
    caption: str
    png: Path
    svg: Path


@dataclasses.dataclass(frozen=True)
class Drawn:
    """What ``draw`` made."""

    pictures: tuple[Picture, ...]
    failures: dict[str, str]
    """Why a picture could not be drawn, by its name: a bug."""


def draw(rows: Sequence[Row], device_kind: str | None, folder: Path) -> Drawn:
    """Draw what ``rows`` have to show into ``folder``, which is made; one that fails is logged and left out.

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
