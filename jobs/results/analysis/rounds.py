"""Rounds of a tuner's candidates: which are complete, how their configs are ranked, and which one wins."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.records.row import CANDIDATE, HEADLINE, AnyRow
from jobs.records.statistics import RankSamples, headline_us

# ``requested`` of a candidate's row: the number of its round, and a mark on the reference's row. That row is a round's
# last one: with it the round is complete.
ROUND, REFERENCE = CANDIDATE + "{}/{}", ":heuristic"


def ends_case(row: AnyRow) -> bool:
    """True for the last row of a case's last round."""
    number, _, num_rounds = row.requested.removesuffix(REFERENCE).removeprefix(CANDIDATE).partition("/")
    return row.requested.endswith(REFERENCE) and number == num_rounds


def complete_rounds[R: AnyRow](rows: Sequence[R]) -> list[list[R]]:
    """Rows of one case by round, the reference last; rows of a round that was cut short are left out."""
    rounds: list[list[R]] = []
    current: list[R] = []
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


def num_bursts(row: AnyRow) -> int:
    """Turns that a candidate had before it dropped out."""
    return len((row.samples_us.get(HEADLINE) or [[]])[0])


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


def winner[R: AnyRow](rounds: Sequence[Sequence[R]], *, min_gain: float) -> tuple[R, R] | None:
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


def winner_sentence(best: AnyRow, reference: AnyRow) -> str:
    """The winner and its gain, for people."""
    if best is reference:
        return f"no config is faster than the heuristic's, {best.headline_us:.2f} us"
    gain = 1 - relative(best.samples_us[HEADLINE], reference.samples_us[HEADLINE])
    return (
        f"{changes(best.config, reference.config)} takes {best.headline_us:.2f} us, {100 * gain:.1f} % less than the "
        "heuristic's config"
    )
