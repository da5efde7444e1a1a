"""Steps shared by the benchmark, the tuner and the soak: open a case, check an implementation, make its row."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobs.config.choices import Fault
from jobs.config.implementations import IN_TURN, LOCALS
from jobs.config.schema import Settings
from jobs.driver.ranks import Ranks
from jobs.errors import InfrastructureError, UsageError
from jobs.measure import torch_fused
from jobs.measure.programs import Opened, Request
from jobs.records.case import Case
from jobs.records.check import Check
from jobs.records.layout import TWO_LEVEL
from jobs.records.row import Row, Samples, spreads
from jobs.results.analysis.best import Best, best_of_samples
from jobs.results.analysis.derive import derive, fastest_us
from jobs.results.terminal.steps import Step


class Measurement:
    """Measures cases on one gang.

    Args:
      ranks: ranks of the gang.
      settings: settings of the job.
      attempt: number of the gang.
      island: name of the gang's island; ``None`` in a job without islands.
      begin: called at each step with the step, its text and the fastest implementation so far.
      announce: called with lines for the log and the table.
    """

    def __init__(
        self,
        ranks: Ranks,
        settings: Settings,
        *,
        attempt: int,
        island: str | None = None,
        begin: Callable[[Step, str, Best | None], None],
        announce: Callable[[str], None],
    ) -> None:
        self.ranks = ranks
        self.settings = settings
        self.attempt = attempt
        self.island = island
        self.announce = announce
        self._begin = begin

    def begin(self, step: Step, name: str | None = None, samples: Mapping[str, Samples] | None = None) -> None:
        """Report a step of the implementation ``name``, and the fastest implementation among ``samples``."""
        text = f"{step.case}: {step.doing}" if name is None else f"{step.case}: {name}: {step.doing}"
        self.report(step, text, best_of_samples(samples or {}))

    def report(self, step: Step, text: str, best: Best | None = None) -> None:
        """Report a step with its own text."""
        self._begin(step, text, best)

    def open(self, case: Case, requests: Sequence[Request]) -> list[Opened]:
        """Open ``case`` on all ranks; a baseline that one rank can't run isn't run at all.

        Raises:
          UsageError: ``kernel.implementation`` can't run on this case.
          InfrastructureError: ranks would run different programs.
        """
        refusals = {name: reason for name, reason in self._refusals(requests).items() if reason is not None}
        tried = [r for r in requests if r.implementation not in refusals]
        by_rank = self.ranks.open_case(case, tried, self.settings.timing, seed())
        opened = iter(self._agreed(by_rank, tried, case))
        return [
            Opened(r.implementation, refusals[r.implementation], None, runs=False)
            if r.implementation in refusals
            else next(opened)
            for r in requests
        ]

    def check(self, case: Case, name: str, *, is_target: bool, calls: int | None = None) -> Check:
        """Check the programs called ``name``; the config's fault is planted if ``is_target``."""
        check = self.settings.check
        # With fault_after the fault is planted in the soak instead.
        fault = check.fault if is_target and check.fault_after is None else Fault.none
        calls = check.calls if calls is None else calls
        chain_length = self.settings.timing.chain_length
        by_rank = self.ranks.check(case, name, calls=calls, seed=seed(), fault=fault, chain_length=chain_length)
        return Check.of_ranks(by_rank)

    def row(self, *, samples_us: Samples, **fields: Any) -> Row:
        """Make a row of this gang, with the present time and the spread of each measured time."""
        return Row(
            samples_us=samples_us,
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            attempt=self.attempt,
            island=self.island,
            **spreads(samples_us),
            **fields,
        )

    def with_derived(self, rows: Sequence[Row]) -> list[Row]:
        """Add the figures derived from headline times to the rows of one case."""
        headlines = {row.implementation: row.headline_us for row in rows}
        return [
            dataclasses.replace(
                row,
                derived=derive(
                    row.case,
                    row.headline_us,
                    local_us=fastest_us(LOCALS, headlines),
                    xla_us=fastest_us(IN_TURN, headlines),
                    device_kind=self.ranks.device_kind,
                    communicates=row.implementation not in LOCALS,
                ),
            )
            if row.headline_us is not None
            else row
            for row in rows
        ]

    def first(self, reasons: Sequence[str | None]) -> str | None:
        """First reason among the ranks, with the rank's name unless all ranks have the same reason."""
        for member, reason in zip(self.ranks.members, reasons, strict=True):
            if reason is not None:
                return reason if all(r == reason for r in reasons) else f"{member}: {reason}"
        return None

    def _refusals(self, requests: Sequence[Request]) -> dict[str, str | None]:
        """Reason, by implementation, why it can't run on any case of this gang."""
        names = {r.implementation for r in requests}
        refusals = {}
        if torch_fused.NAME in names:
            refusals[torch_fused.NAME] = self._torch_refusal
        if (reason := self.ranks.layout.two_level_refusal) is not None:
            if any(r.requested == TWO_LEVEL for r in requests):
                raise UsageError(
                    f"kernel.implementation={TWO_LEVEL} {reason}; use kernel=ppermute, another cluster.num_ranks or, "
                    "on GPUs, cluster.gpus_per_host"
                )
            refusals[TWO_LEVEL] = reason
        return refusals

    @functools.cached_property
    def _torch_refusal(self) -> str | None:
        """Reason why the ranks can't form a torch process group; ``None`` once they have."""
        members = self.ranks.members
        if len({member.node_id for member in members}) > 1:
            return "its symmetric memory joins the GPUs of one host, and the ranks are on several"
        host = members[0].ip
        ready = self.ranks.get_torch_ready(host)
        if (reason := self.first([r.refusal for r in ready])) is not None:
            return reason
        return self.first(self.ranks.join_torch(host, ready[0].port))

    def _agreed(self, by_rank: Sequence[Sequence[Opened]], requests: Sequence[Request], case: Case) -> list[Opened]:
        """Programs that all ranks opened alike; ranks that differ would wait for each other forever."""
        agreed = []
        for request, of_ranks in zip(requests, zip(*by_rank, strict=True), strict=True):
            first = of_ranks[0]
            reason = self.first([None if opened.runs else opened.reason for opened in of_ranks])
            odd = [(m, o) for m, o in zip(self.ranks.members, of_ranks, strict=True) if o != first]
            if reason is None and odd:
                reason = f"{odd[0][0]} would run {odd[0][1]}, but rank 0 {first}; ranks must be alike"
            if reason is None:
                agreed.append(first)
            elif request.is_optional:
                agreed.append(Opened(first.implementation, reason, None, runs=False))
            else:
                raise InfrastructureError(f"{case}: {reason}")
        return agreed


def seed() -> int:
    """Fresh seed of 30 bits, so that a rank can count up from it without overflow."""
    return secrets.randbits(30)
