"""One config that the tuner measures."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from cmkernel.config import Config, to_plain
from jobs.records.check import Check
from jobs.records.row import RowSummary
from jobs.results.analysis.rounds import complete_rounds

# Start of the reason for a candidate whose gang died; it is never retried.
LOST = "the gang was lost with it"


@dataclasses.dataclass
class Candidate:
    """One config in a round."""

    config: Config
    label: str
    reason: str
    check: Check | None = None
    samples: list[list[list[float]]] = dataclasses.field(default_factory=list)
    """Headline samples: ``[rank][burst][sample]``."""
    runs: bool = False
    """True while its program runs on the ranks."""

    @classmethod
    def of(cls, config: Config, place: int) -> Candidate:
        """Candidate at a place in its round; place 0 is the reference."""
        return cls(config, f"candidate {place}", "a candidate" if place else "the heuristic's config")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Mark the candidate as running; the mark stays after an exception."""
        self.runs = True
        yield
        self.runs = False

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in to_plain(self.config).items())


def configs_done(rows: Sequence[RowSummary]) -> list[dict[str, Any] | None]:
    """Configs of one case that need no further turn: measured in a complete round, or lost together with their gang."""
    lost = [row for row in rows if row.check is None and (row.reason or "").startswith(LOST)]
    return [row.config for of_round in [*complete_rounds(rows), lost] for row in of_round]
