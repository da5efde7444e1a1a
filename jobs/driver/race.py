"""Race of a round's candidates: they take turns, slow ones drop out, the fastest gets the full check."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jobs.driver.candidate import Candidate
from jobs.driver.measurement import Measurement
from jobs.records.case import Case
from jobs.records.row import HEADLINE
from jobs.records.statistics import headline_us
from jobs.results.analysis.rounds import ranking_score
from jobs.results.terminal.steps import Step, burst_name, round_name


def race(measurement: Measurement, case: Case, ready: Sequence[Candidate], prefix: str, number: int) -> None:
    """Time the candidates burst by burst, in a different order each time; the reference never drops out.

    Args:
      measurement: measurement on the gang, with the case open.
      case: case to time.
      ready: candidates whose chain is right, the reference first; each gets its samples, and a reason if it is dropped.
      prefix: text before a candidate's config in the progress line.
      number: number of the round.
    """
    tuning, timing = measurement.settings.tuning, measurement.settings.timing
    timing = dataclasses.replace(timing, iterations=0, bursts=tuning.bursts, chains=tuning.bursts * tuning.chains)
    for candidate in ready:
        candidate.samples = [[] for _ in range(case.num_ranks)]
    racing = list(ready)
    for burst in range(tuning.bursts):
        fastest = {f"{prefix}{c}": {HEADLINE: c.samples} for c in racing if burst}
        measurement.begin(Step(case, round_name(number, burst_name(burst, tuning.bursts))), None, fastest)
        first = burst % len(racing)
        for candidate in racing[first:] + racing[:first]:
            with candidate.running():
                ranks = measurement.ranks.burst(case, candidate.label, burst, timing)
            for samples, times in zip(candidate.samples, ranks, strict=True):
                samples.append(times[HEADLINE])
        if burst + 1 == tuning.bursts:
            break
        limit_us = tuning.early_stop * min(headline_us(c.samples) for c in racing)
        for candidate in racing[1:]:
            if headline_us(candidate.samples) > limit_us:
                candidate.reason = f"a candidate, stopped after {burst + 1} of {tuning.bursts} bursts"
        racing = [c for c in racing if c is ready[0] or headline_us(c.samples) <= limit_us]


def check_fastest(measurement: Measurement, case: Case, raced: Sequence[Candidate], number: int) -> None:
    """Give the full check to the fastest candidate; if it fails, to the next one.

    Args:
      measurement: measurement on the gang, with the case open.
      case: case that was timed.
      raced: candidates with samples, the reference first; one that fails the check loses its samples.
      number: number of the round.
    """
    measurement.begin(Step(case, round_name(number, "check")))
    min_gain = measurement.settings.tuning.min_gain
    scores = {c.label: ranking_score(c.samples, raced[0].samples, min_gain=min_gain) for c in raced}
    for candidate in sorted(raced, key=lambda c: scores[c.label]):
        with candidate.running():
            candidate.check = measurement.check(case, candidate.label, is_target=True)
        if candidate.check.passed:
            return
        candidate.samples = []
