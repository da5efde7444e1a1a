"""Which rows a picture shows, and what it calls their cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jobs.records.case import Case
from jobs.records.row import HEADLINE, Row
from jobs.results.pictures.style import MAX_CASES, rank_of

# In the order in which a label names them; the last ones are left out first where the others tell the cases apart.
_FIELDS = ("name", "m_shard", "k", "n_shard", "dtype", "num_ranks")
_SHORT = {"num_ranks": "D"}


def first_cases(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Rows of the first ``MAX_CASES`` cases, and a note where that isn't all of them."""
    cases = list(dict.fromkeys(row.case for row in rows))
    if len(cases) <= MAX_CASES:
        return list(rows), []
    shown = set(cases[:MAX_CASES])
    return [row for row in rows if row.case in shown], [f"the first {MAX_CASES} of {len(cases)} cases"]


def fastest_rows(rows: Sequence[Row]) -> dict[Case, list[Row]]:
    """Of each case a row for each implementation: the fastest that passed, else the first."""
    found: dict[Case, dict[str, Row]] = {}
    for row in rows:
        of_case = found.setdefault(row.case, {})
        known = of_case.get(row.implementation)
        if known is None or _time_us(row) < _time_us(known):
            of_case[row.implementation] = row
    return {
        case: sorted(of_case.values(), key=lambda row: rank_of(row.implementation)) for case, of_case in found.items()
    }


def shared(rows: Sequence[Row], device_kind: str | None, *more: str) -> str:
    """What the cases of all ``rows`` have in common, then ``more``: the line below a picture's title."""
    cases = [row.case for row in rows]
    fields = [field for field in _FIELDS if len({getattr(case, field) for case in cases}) == 1]
    return ", ".join([*([device_kind] if device_kind else []), *(_named(field, cases[0]) for field in fields), *more])


def about(rows: Sequence[Row], device_kind: str | None, *more: str) -> str:
    """``shared``, and a note where ``fastest_rows`` leaves rows out."""
    num_rows = max(Counter((row.case, row.implementation) for row in rows).values())
    return shared(rows, device_kind, *more, *([f"the fastest of up to {num_rows} rows each"] if num_rows > 1 else []))


def case_labels(cases: Sequence[Case], without: str | None = None) -> dict[Case, str]:
    """A label for each case, of no more fields than tell them apart; where nothing does, of their sizes.

    ``without`` is a field that labels must not name: cases which differ in that alone share theirs.
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
    value = getattr(case, field)
    return str(value) if field in ("name", "dtype") else f"{_SHORT.get(field, field)}={value}"
