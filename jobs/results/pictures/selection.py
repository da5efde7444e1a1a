"""Choice of the rows that a picture shows, and labels for their cases."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from jobs.records.case import Case
from jobs.records.op import Op
from jobs.records.row import HEADLINE, Row
from jobs.results.pictures.style import MAX_CASES, rank_of

# In the order of a label, which drops the last ones first where the others tell the cases apart.
_FIELDS = ("name", "op", "m_shard", "k", "n_shard", "dtype", "partial_dtype", "num_ranks")
_SHORT = {"num_ranks": "D", "partial_dtype": "partials"}


def first_cases(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Rows of the first ``MAX_CASES`` cases, and a note where that isn't all of them."""
    cases = list(dict.fromkeys(row.case for row in rows))
    if len(cases) <= MAX_CASES:
        return list(rows), []
    shown = set(cases[:MAX_CASES])
    return [row for row in rows if row.case in shown], [f"the first {MAX_CASES} of {len(cases)} cases"]


@dataclasses.dataclass(frozen=True)
class Shown:
    """A row that a picture shows for one case and implementation."""

    row: Row
    place: str
    """``fastest`` or ``slowest`` of the islands that measured the case; empty where there is one."""


def shown_rows(rows: Sequence[Row]) -> dict[Case, list[Shown]]:
    """Rows to show of each case: for each implementation its fastest row, or that of its fastest and slowest island.

    A row that failed or didn't run is slower than any other.
    """
    best: dict[Case, dict[str, dict[str | None, Row]]] = {}
    for row in rows:
        of_islands = best.setdefault(row.case, {}).setdefault(row.implementation, {})
        known = of_islands.get(row.island)
        if known is None or _time_us(row) < _time_us(known):
            of_islands[row.island] = row
    return {
        case: [shown for name in sorted(of_case, key=rank_of) for shown in _extremes(list(of_case[name].values()))]
        for case, of_case in best.items()
    }


def _extremes(of_islands: Sequence[Row]) -> list[Shown]:
    if len(of_islands) == 1:
        return [Shown(of_islands[0], "")]
    ranked = sorted(of_islands, key=_time_us)
    return [Shown(ranked[0], "fastest"), Shown(ranked[-1], "slowest")]


def shared(rows: Sequence[Row], device_kind: str | None, *more: str) -> str:
    """The line below a picture's title: what the cases of all ``rows`` have in common, then ``more``."""
    cases = [row.case for row in rows]
    fields = [field for field in _FIELDS if len({getattr(case, field) for case in cases}) == 1]
    # Values that nearly every job has aren't worth a mention.
    usual = {"op": Op.all_gather_matmul, "partial_dtype": None}
    fields = [field for field in fields if getattr(cases[0], field) != usual.get(field, ...)]
    return ", ".join([*([device_kind] if device_kind else []), *(_named(field, cases[0]) for field in fields), *more])


def about(rows: Sequence[Row], device_kind: str | None, *more: str) -> str:
    """``shared``, and a note where ``shown_rows`` leaves rows out."""
    num_rows = max(Counter((row.case, row.implementation, row.island) for row in rows).values())
    num_islands = len({row.island for row in rows})
    notes = [f"the fastest of up to {num_rows} rows each"] if num_rows > 1 else []
    notes += [f"the fastest and the slowest of {num_islands} islands"] if num_islands > 1 else []
    return shared(rows, device_kind, *more, *notes)


def case_labels(cases: Sequence[Case], without: str | None = None) -> dict[Case, str]:
    """The shortest label that tells each case from the others; their sizes, where all cases are the same.

    Labels never name the field ``without``: cases that differ in it alone share a label.
    """
    known = [field for field in _FIELDS if field != without]
    fields = [field for field in known if len({getattr(case, field) for case in cases}) > 1]
    num_labels = len({_values(case, fields) for case in cases})
    for field in reversed(fields):
        fewer = [other for other in fields if other != field]
        if len({_values(case, fewer) for case in cases}) == num_labels:
            fields = fewer
    fields = fields or [field for field in known if field in ("m_shard", "k", "n_shard")]
    return {case: " ".join(_named(field, case) for field in fields) for case in cases}


def samples_us(row: Row) -> list[list[float]]:
    """The raw headline times of each rank, in the order of measuring."""
    return [[value for burst in rank for value in burst] for rank in row.samples_us.get(HEADLINE, ())]


def _time_us(row: Row) -> float:
    return float("inf") if row.headline_us is None else row.headline_us


def _values(case: Case, fields: Sequence[str]) -> tuple[object, ...]:
    return tuple(getattr(case, field) for field in fields)


def _named(field: str, case: Case) -> str:
    value = case.sent_dtype if field == "partial_dtype" else getattr(case, field)
    if field == "op":
        return case.op.short
    return str(value) if field in ("name", "dtype") else f"{_SHORT.get(field, field)}={value}"
