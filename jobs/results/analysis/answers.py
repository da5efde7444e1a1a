"""One sentence for each case: which implementation is fastest, and how it compares with XLA and with local.

Only equal numbers compete. A time counts where its check passed, on every island that measured the case; the slowest
island's figure counts. A tuner's candidate competes with the heuristic's config of its own round, if it had as many
bursts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jobs.config.implementations import IN_TURN, LOCALS
from jobs.config.schema import TuningSettings
from jobs.records.case import Case
from jobs.records.op import Op
from jobs.records.row import AnyRow
from jobs.results.analysis.derive import fastest_us
from jobs.results.analysis.rounds import REFERENCE, complete_rounds, num_bursts, winner, winner_sentence

# Others that are within 1 % of the fastest are named beside it.
_CLOSE = 1.01


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of one case."""

    case: Case
    implementation: str | None
    """The fastest one that communicates; ``None`` where none has a time."""
    time_us: float | None
    """Its headline time, on the slowest island where there are islands."""
    speedup: float | None
    """Time of XLA's communication and multiply in turn over that time; ``None`` where it wasn't measured."""
    ratio_to_local: float | None
    """That time over the multiply alone; ``None`` where it wasn't measured."""
    sentence: str
    """The whole answer in words, beginning with the case."""


def answers(
    rows: Sequence[AnyRow], *, cases: Sequence[Case] = (), min_gain: float = TuningSettings.min_gain
) -> list[Answer]:
    """One answer for each case of a run, in the order of the rows.

    Args:
      rows: of one run, complete or condensed; of those measured again the last one counts.
      cases: all that were planned; those without a row get an answer too.
      min_gain: share by which a candidate must be faster than the heuristic's config to be called faster.
    """
    of_case: dict[Case, list[AnyRow]] = {case: [] for case in cases}
    for row in rows:
        of_case.setdefault(row.case, []).append(row)
    return [
        _tuned(case, its, min_gain) if any(row.is_candidate for row in its) else _measured(case, its)
        for case, its in of_case.items()
    ]


def _measured(case: Case, rows: Sequence[AnyRow]) -> Answer:
    latest = {(row.implementation, row.island): row for row in rows}
    islands = list(dict.fromkeys(row.island for row in rows))
    names = [name for name in dict.fromkeys(row.implementation for row in rows) if name not in LOCALS]
    slowest: dict[str, tuple[float, str | None]] = {}
    for name in names:
        its = [latest.get((name, island)) for island in islands]
        times = [(row.headline_us, row.island) for row in its if row and row.headline_us is not None]
        if len(times) == len(islands):
            slowest[name] = max(times, key=lambda time: time[0])
    left_out = _left_out(list(latest.values()), islands)
    if not slowest:
        return Answer(case, None, None, None, None, f"{case}: no implementation has a result{left_out}.")
    fastest = min(slowest, key=lambda name: slowest[name][0])
    time_us, island = slowest[fastest]
    headlines = {row.implementation: row.headline_us for row in latest.values() if row.island == island}
    in_turn_us, local_us = fastest_us(IN_TURN, headlines), fastest_us(LOCALS, headlines)
    speedup, ratio = in_turn_us and in_turn_us / time_us, local_us and time_us / local_us
    parts = [] if fastest in IN_TURN else [_against_in_turn(case.op, speedup)]
    figures = " and ".join([*parts, _against_local(case.op, ratio)])
    where = f" on {island}, the slowest of {len(islands)} islands" if island and len(islands) > 1 else ""
    verdict = "fastest" if len(slowest) > 1 else "the only one with a time"
    rivals = _rivals(fastest, {name: time for name, (time, _) in slowest.items()}, rows)
    sentence = f"{case}: {fastest} is {verdict}, {time_us:.2f} us{where}: {figures}{rivals}{left_out}."
    return Answer(case, fastest, time_us, speedup, ratio, sentence)


def _rivals(fastest: str, times_us: Mapping[str, float], rows: Sequence[AnyRow]) -> str:
    """Implementations close to the fastest, and ``kernel.implementation`` if it lost."""
    wanted = next((row.implementation for row in rows if not row.is_baseline), None)
    ratios = {name: time_us / times_us[fastest] for name, time_us in times_us.items() if name != fastest}
    close = [name for name, ratio in ratios.items() if ratio <= _CLOSE]
    text = f"; within {100 * (_CLOSE - 1):.0f} % of it: {', '.join(close)}" if close else ""
    if wanted in ratios and wanted not in close:
        text += f"; {wanted} takes {ratios[wanted]:.2f} times as long"
    return text


def _against_in_turn(op: Op, speedup: float | None) -> str:
    if speedup is None:
        return f"{op.in_turn} has no time"
    if speedup < 1:
        return f"{1 / speedup:.2f} times as long as {op.in_turn}"
    return f"{speedup:.2f} times as fast as {op.in_turn}"


def _against_local(op: Op, ratio: float | None) -> str:
    if ratio is None:
        return f"{op.alone} has no time"
    if ratio >= 2:
        return f"{ratio:.1f} times as long as {op.alone}"
    percent = f"{100 * abs(ratio - 1):.1f} %"
    return f"{percent} {'slower' if ratio >= 1 else 'faster'} than {op.alone}"


def _left_out(rows: Sequence[AnyRow], islands: Sequence[str | None]) -> str:
    """Implementations that have no time, by why."""
    failed, not_run, not_timed, absent = [], [], [], []
    for name in dict.fromkeys(row.implementation for row in rows):
        its = [row for row in rows if row.implementation == name]
        if wrong := [row for row in its if row.failed]:
            failed.append(_named(name, wrong))
        if refused := [row for row in its if row.check is None]:
            not_run.append(_named(name, refused))
        if bare := [row for row in its if row.check and not row.failed and row.headline_us is None]:
            not_timed.append(_named(name, bare))
        if len(its) < len(islands):
            absent.append(f"{name} ({len(islands) - len(its)} of {len(islands)} islands)")
    groups = {
        "FAILED its check": failed,
        "could not run": not_run,
        "has no time": not_timed,
        "is missing": absent,
    }
    return "".join(f"; {', '.join(names)} {what}" for what, names in groups.items() if names)


def _named(name: str, rows: Sequence[AnyRow]) -> str:
    islands = [row.island for row in rows if row.island is not None]
    return f"{name} on {', '.join(islands)}" if islands else name


def _tuned(case: Case, rows: Sequence[AnyRow], min_gain: float) -> Answer:
    """Best config of the complete rounds, against the heuristic's config of its round."""
    rounds, name = complete_rounds(rows), rows[0].implementation
    found = winner(rounds, min_gain=min_gain)
    if found is None:
        text = f"{case}: {name} has no time of the heuristic's config to compare with; {_counts(rounds, rows)}."
        return Answer(case, None, None, None, None, text)
    best, reference = found
    sentence = f"{case}: {name}: {winner_sentence(best, reference)}; {_counts(rounds, rows)}."
    return Answer(case, name, best.headline_us, None, None, sentence)


def _counts(rounds: Sequence[Sequence[AnyRow]], rows: Sequence[AnyRow]) -> str:
    configs = [row for row in rows if not row.requested.endswith(REFERENCE)]
    stopped = sum(0 < num_bursts(row) < num_bursts(reference) for *others, reference in rounds for row in others)
    counts = {
        "FAILED": sum(row.failed for row in configs),
        "could not run": sum(row.check is None for row in configs),
        "stopped early": stopped,
    }
    listed = "".join(f", {number} {fate}" for fate, number in counts.items() if number)
    return f"{len(configs)} other {'config' if len(configs) == 1 else 'configs'} tried{listed}"
