"""Lines above the rows of a gang: machine, versions, cases with their modelled times, and the columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cmkernel import cost
from jobs.driver.ranks import Ranks
from jobs.records.case import Case
from jobs.records.work import expected_time
from jobs.results.terminal import table


def header_lines(ranks: Ranks, cases: Sequence[Case], island: str | None) -> list[str]:
    """Header of a job's first gang, or of the first gang of its islands."""
    # The model knows NVLink alone, so it doesn't hold over several hosts.
    model = cost.device_model(ranks.device_kind) if ranks.layout.num_hosts == 1 else None
    return [
        *table.header_lines(
            members=[dataclasses.asdict(member) for member in ranks.members],
            versions=ranks.members[0].versions,
            links=", ".join(sorted(set(ranks.links()))),
            cases=[(case, expected_time(case, model) if model else None) for case in cases],
            island=island,
        ),
        *table.host_lines(ranks.layout, cases, ranks.device_kind),
    ]


def device_lines(ranks: Ranks, island: str | None) -> list[str]:
    """Header of a later gang: the places of its ranks."""
    return table.device_lines([dataclasses.asdict(member) for member in ranks.members], island)
