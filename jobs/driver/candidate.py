"""One config that the tuner measures, the rounds in which candidates run, and how they are ranked."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cmkernel.config import Config, to_plain
from jobs.records.check import Check
from jobs.records.row import CANDIDATE, HEADLINE, AnyRow, RowSummary
from jobs.records.statistics import RankSamples, headline_us

# ``requested`` of a candidate's row: the number of its round, and a mark on the reference's row. That row is a round's
# last one: with it the round is complete.
ROUND, REFERENCE = CANDIDATE + "{}/{}", ":heuristic"
# Prefix of the reason of a candidate whose gang died; it is never retried.
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
        """Candidate at a place in its round; the first one is the reference."""
        return cls(config, f"candidate {place}", "a candidate" if place else "the heuristic's config")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Mark it as running; after an exception the mark stays."""
        self.runs = True
        yield
        self.runs = False

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in to_plain(self.config).items())


def ends_case(row: AnyRow) -> bool:
    """True for the last row of a case's last round."""
    number, _, num_rounds = row.requested.removesuffix(REFERENCE).removeprefix(CANDIDATE).partition("/")
    return row.requested.endswith(REFERENCE) and number == num_rounds


def complete_rounds(rows: Sequence[RowSummary]) -> list[list[RowSummary]]:
    """Rows of one case by round, the reference last; rows of a round that was cut short are left out."""
    rounds: list[list[RowSummary]] = []
    current: list[RowSummary] = []
    for row in rows:
        # A round that was cut short and measured again may have the same number; the attempt tells them apart.
        key = row.requested.removesuffix(REFERENCE), row.attempt
        if current and key != (current[-1].requested, current[-1].attempt):
            current = []
        current.append(row)
        if row.requested.endswith(REFERENCE):
            rounds.append(current)
            current = []
    return rounds


def configs_done(rows: Sequence[RowSummary]) -> list[dict[str, Any] | None]:
    """Configs of one case that have had their turn: in complete rounds, or in a gang that was lost with them."""
    lost = [row for row in rows if row.check is None and (row.reason or "").startswith(LOST)]
    return [row.config for of_round in [*complete_rounds(rows), lost] for row in of_round]


def relative(samples: RankSamples, reference: RankSamples) -> float:
    """Time over the reference's: the median over the bursts that both had, each compared with its own turn."""
    num_bursts = min(len(samples[0]), len(reference[0])) if samples and reference else 0
    if not num_bursts:
        return math.inf
    return statistics.median(
        headline_us([rank[burst : burst + 1] for rank in samples])
        / headline_us([rank[burst : burst + 1] for rank in reference])
        for burst in range(num_bursts)
    )


def ranking_score(samples: RankSamples, reference: RankSamples, *, min_gain: float) -> float:
    """Ranking score; lowest wins. 1 for the reference; for others their relative time plus ``min_gain``.

    A time has two views, the median over bursts and the headline. The worse one counts, because noise can make one of
    them look fast. A candidate that was stopped early can't win.
    """
    if samples is reference:
        return 1.0
    if not samples or len(samples[0]) < len(reference[0]):
        return math.inf
    return max(relative(samples, reference), headline_us(samples) / headline_us(reference)) + min_gain


def winner(rounds: Sequence[Sequence[RowSummary]], *, min_gain: float) -> tuple[RowSummary, RowSummary] | None:
    """Row with the lowest score over all rounds, and its round's reference; ``None`` where no check passed."""
    raced = [
        (ranking_score(row.samples_us[HEADLINE], reference.samples_us[HEADLINE], min_gain=min_gain), row, reference)
        for *others, reference in rounds
        for row in [reference, *others]
        if row.samples_us and reference.samples_us
    ]
    return min(raced, key=lambda entry: entry[0])[1:] if raced else None


def changes(config: Mapping[str, Any] | None, reference: Mapping[str, Any] | None) -> str:
    """Options in which a config differs from that of a reference."""
    options = (config or {}).items()
    return " ".join(f"{name}={value}" for name, value in options if value != (reference or {}).get(name))


def verdict(row: AnyRow, reference: AnyRow) -> str:
    """A candidate's time against the reference's, for people."""
    ratio = relative(row.samples_us.get(HEADLINE, []), reference.samples_us.get(HEADLINE, []))
    time = f"{ratio:.3f} x the heuristic's time" if math.isfinite(ratio) else "no time"
    return f"{changes(row.config, reference.config)}: {time} ({row.reason})"


def winner_sentence(best: RowSummary, reference: RowSummary) -> str:
    """The winner and its gain, for people."""
    if best is reference:
        return f"no config is faster than the heuristic's, {best.headline_us:.2f} us"
    gain = 1 - relative(best.samples_us[HEADLINE], reference.samples_us[HEADLINE])
    return (
        f"{changes(best.config, reference.config)} takes {best.headline_us:.2f} us, {100 * gain:.1f} % less than the "
        "heuristic's config"
    )
