"""One config that the tuner measures, and the rounds in which candidates run."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from cmkernel.config import Config, to_plain
from jobs.records.row import CANDIDATE, HEADLINE, Check, Row

# What ``requested`` of a candidate's row is: which of a case's rounds, and whether it is what the others are measured
# against. That row is a round's last one: with it the round is complete.
ROUND, REFERENCE = CANDIDATE + "{}/{}", ":heuristic"
# How the reason of a candidate begins that no other gang shall try.
LOST = "the gang was lost with it"
Samples = Sequence[Sequence[Sequence[float]]]  # [rank][burst][sample]


@dataclasses.dataclass
class Candidate:
    """One config in a round."""

    config: Config
    label: str
    reason: str
    check: Check | None = None
    samples: list[list[list[float]]] = dataclasses.field(default_factory=list)
    """Of the headline time: ``[rank][burst][sample]``."""

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in to_plain(self.config).items())


def ends_case(row: Row) -> bool:
    """Whether it is the last row of a case's last round."""
    number, _, num_rounds = row.requested.removesuffix(REFERENCE).removeprefix(CANDIDATE).partition("/")
    return row.requested.endswith(REFERENCE) and number == num_rounds


def complete_rounds(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one case by round, the reference last; those of a round that was cut short are left out."""
    rounds: list[list[Row]] = []
    current: list[Row] = []
    for row in rows:
        # What is left of a round before this one was cut short; measured again, it may have the same number.
        its = row.requested.removesuffix(REFERENCE), row.attempt
        if current and its != (current[-1].requested, current[-1].attempt):
            current = []
        current.append(row)
        if row.requested.endswith(REFERENCE):
            rounds.append(current)
            current = []
    return rounds


def done_with(rows: Sequence[Row]) -> list[dict[str, Any] | None]:
    """Configs of one case that have had their turn: in complete rounds, or in a gang that was lost with them."""
    lost = [row for row in rows if row.check is None and (row.reason or "").startswith(LOST)]
    return [row.config for of_round in [*complete_rounds(rows), lost] for row in of_round]


def headline_us(samples: Samples) -> float:
    """Maximum over ranks of each rank's median."""
    return max(statistics.median(value for burst in rank for value in burst) for rank in samples)


def relative(samples: Samples, reference: Samples) -> float:
    """Time relative to the reference's: the median over the bursts that both had, each compared with its own turn."""
    num_bursts = min(len(samples[0]), len(reference[0])) if samples and reference else 0
    if not num_bursts:
        return math.inf
    return statistics.median(
        headline_us([rank[burst : burst + 1] for rank in samples])
        / headline_us([rank[burst : burst + 1] for rank in reference])
        for burst in range(num_bursts)
    )


def handicap(samples: Samples, reference: Samples, *, min_gain: float) -> float:
    """What the winner has least of: 1 for the reference, and for others their relative time and ``min_gain``.

    Of the two views on their time, the median over bursts and the headline, the worse one counts: what noise makes look
    faster by one of them isn't. Who was stopped early can't win.
    """
    if samples is reference:
        return 1.0
    if not samples or len(samples[0]) < len(reference[0]):
        return math.inf
    return max(relative(samples, reference), headline_us(samples) / headline_us(reference)) + min_gain


def changes(config: Mapping[str, Any] | None, reference: Mapping[str, Any] | None) -> str:
    """The options in which a config differs from that of a reference."""
    options = (config or {}).items()
    return " ".join(f"{name}={value}" for name, value in options if value != (reference or {}).get(name))


def told(row: Row, reference: Row) -> str:
    """What came of a candidate, for people."""
    ratio = relative(row.samples_us.get(HEADLINE, []), reference.samples_us.get(HEADLINE, []))
    time = f"{ratio:.3f} x the heuristic's time" if math.isfinite(ratio) else "no time"
    return f"{changes(row.config, reference.config)}: {time} ({row.reason})"
