"""Questions to ranks whose step may be stuck: are they alive, and where are they."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.gang.answers import Answers
from jobs.gang.failures import name_rank
from jobs.gang.messages import Place, Report
from jobs.gang.watchdog import describe_state

logger = logging.getLogger(__name__)

# Upper bounds for a live rank to answer on its control group.
PING_TIMEOUT_S = 2.0
REPORT_TIMEOUT_S = 4.0


class Probe:
    """Asks ``actors``, by rank, on their control group; a rank answers there while its step runs."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors

    def survey(self, *, but: Collection[int] = ()) -> tuple[list[int], list[int]]:
        """Ranks that are dead, and ranks that don't answer, among all except ``but``."""
        answers = Answers({r: actor.ping.remote() for r, actor in enumerate(self._actors) if r not in but})
        _, dead = answers.collect(PING_TIMEOUT_S)
        return sorted(dead), sorted(answers.unfinished)

    def reports(self, *, but: Collection[int] = ()) -> dict[int, Report]:
        """Reports of all ranks except ``but``, as far as they answer."""
        answers = Answers({r: actor.report.remote() for r, actor in enumerate(self._actors) if r not in but})
        return answers.collect(REPORT_TIMEOUT_S)[0]


def save_stacks(places: Sequence[Place], reports: Mapping[int, Report], path: Path | None) -> str:
    """Write the stacks of all ranks to ``path``, or to the log without one; return where they are."""
    sections = []
    for rank in range(len(places)):
        report = reports.get(rank)
        text = f"{describe_state(report)}\n{report.stacks}" if report else "no answer"
        sections.append(f"=== {name_rank(places, rank)} ===\n{text}\n")
    text = "\n".join(sections)
    if path is not None:
        try:
            path.write_text(text)
            return str(path)
        except OSError as error:
            logger.error("%s: %s", path, error)
    logger.error("stacks of the ranks:\n%s", text)
    return "in the log"
