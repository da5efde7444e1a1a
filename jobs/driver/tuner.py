"""Tuner: measures candidates for a case in rounds, each with the heuristic's config, and records the winner."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from cmkernel.candidates import kernel_candidates, ppermute_candidates, scatter_kernel_candidates
from cmkernel.config import Config, from_plain, to_plain
from cmkernel.tuned import Entry, Shape, shipped
from jobs.config.choices import World
from jobs.config.implementations import IMPLEMENTATIONS
from jobs.config.problem import ops_of
from jobs.config.schema import Settings
from jobs.config.tuned_table import add_entry
from jobs.driver.candidate import LOST, Candidate, configs_done
from jobs.driver.kind import Kind
from jobs.driver.measurement import Measurement
from jobs.driver.race import check_fastest, race
from jobs.errors import GangLost, InfrastructureError, UsageError
from jobs.measure.programs import Opened, Request
from jobs.records.case import Case
from jobs.records.op import Op
from jobs.records.row import HEADLINE, Row, RowSummary, Telemetry
from jobs.results.analysis.rounds import REFERENCE, ROUND, complete_rounds, ends_case, verdict, winner, winner_sentence
from jobs.results.terminal.steps import Step, round_name, tuning_steps


class Tuner:
    """Drives the ranks of a measurement through the candidates for one implementation.

    Args:
      measurement: measurement on the gang.
      target: implementation to tune, with the table in use; ``auto``: the kernel on GPUs, the portable ring on CPUs.
    """

    def __init__(self, measurement: Measurement, target: Request, winners_path: Path) -> None:
        self._measurement = measurement
        self._ranks = measurement.ranks
        self._tuning = measurement.settings.tuning
        self._winners_path = winners_path
        self._table = shipped() if target.table is None else target.table
        self._implementation = target.implementation
        if target.implementation == "auto":
            self._implementation = "mosaic_gpu" if self._ranks.on_gpus else "ppermute"

    def run(self, case: Case, rows: Sequence[RowSummary] = ()) -> Iterator[list[Row]]:
        """Measure the candidates that no complete round in ``rows`` covers, then write the winner to the table.

        Yields the rows of one round at a time.

        Raises:
          UsageError: the implementation can't run on this case.
          GangLost: a rank died, or the gang hangs.
          InfrastructureError: a rank is too slow, or differs from the others.
        """
        reference, *others = self._configs(case)
        rows = [row for row in rows if row.case == case]
        rounds, done = complete_rounds(rows), configs_done(rows)
        left = [config for config in others if to_plain(config) not in done]
        size = self._tuning.round_size - 1
        batches = [left[start : start + size] for start in range(0, len(left), size)] or [[]]
        num_rounds = len(rounds) + len(batches)
        for number, batch in enumerate(batches, len(rounds) + 1):
            candidates = [Candidate.of(config, place) for place, config in enumerate([reference, *batch])]
            requested = ROUND.format(number, num_rounds)
            try:
                measured = self._round(case, candidates, requested, number)
            except GangLost as error:
                # The candidate may be the cause. A config that hangs isn't retried: it would cost every later gang too.
                for lost in (c for c in candidates[1:] if c.runs):
                    lost.check, lost.samples, lost.reason = None, [], f"{LOST}: {str(error).splitlines()[0]}"
                    yield [self._row(case, lost, requested, ())]
                raise
            rounds.append([row.summary() for row in measured])
            for row in measured[:-1]:
                self._measurement.announce(f"{case}: {verdict(row, measured[-1])}")
            if number == num_rounds:
                self._record_winner(case, rounds)
            yield measured

    def _configs(self, case: Case) -> list[Config]:
        """Configs to measure: the heuristic's, the one in the table in use, those from ``cmkernel.candidates``."""
        shape = self._shape(case)
        configs: list[Config] = []
        if self._implementation == "mosaic_gpu":
            assert self._num_sms is not None
            of_kernel = kernel_candidates if case.op is Op.all_gather_matmul else scatter_kernel_candidates
            configs += of_kernel(**shape.sizes, num_sms=self._num_sms, slowest=self._tuning.max_modelled)
        else:
            configs += ppermute_candidates(m_shard=case.m_shard)
        if (known := self._table.find(self._implementation, shape, self._num_sms)) is not None:
            configs.insert(1, known.config)
        return list(dict.fromkeys(configs))[: self._tuning.max_candidates]

    @functools.cached_property
    def _num_sms(self) -> int | None:
        counts = self._ranks.num_sms()
        if len(set(counts)) > 1:
            raise InfrastructureError(f"ranks have GPUs with {sorted(map(str, set(counts)))} SMs; ranks must be alike")
        return counts[0]

    def _shape(self, case: Case) -> Shape:
        sizes = {name: getattr(case, name) for name in ("num_ranks", "m_shard", "k", "n_shard", "dtype")}
        return Shape(device_kind=self._ranks.device_kind, **sizes, op=case.op.function)

    def _round(self, case: Case, candidates: list[Candidate], requested: str, number: int) -> list[Row]:
        """Open, check and time ``candidates``, the reference first; returns their rows, the reference's last."""
        self._measurement.begin(Step(case, round_name(number, "inputs")))
        requests = [
            Request(requested, self._implementation, dataclasses.asdict(c.config), label=c.label) for c in candidates
        ]
        opened = self._measurement.open(case, requests)
        ready = [c for c, o in zip(candidates, opened, strict=True) if self._is_ready(case, c, o, number)]
        reference = candidates[0]
        if reference.check is None:
            raise UsageError(f"{case}: {self._implementation} can't be tuned: {reference.reason}")
        self._ranks.start_sampling()
        if reference in ready:
            race(self._measurement, case, ready, f"{self._implementation} ", number)
        telemetry = self._ranks.stop_sampling()
        check_fastest(self._measurement, case, [c for c in ready if c.samples], number)
        self._ranks.close_case(case)
        rows = [self._row(case, c, requested, telemetry) for c in candidates[1:]]
        return self._measurement.with_derived([*rows, self._row(case, reference, requested + REFERENCE, telemetry)])

    def _is_ready(self, case: Case, candidate: Candidate, opened: Opened, number: int) -> bool:
        """Compile a candidate and check its chain; a candidate that can't run gets the reason."""
        self._measurement.begin(Step(case, round_name(number, candidate.label)), str(candidate))
        with candidate.running():
            refusal = None if opened.runs else opened.reason
            if refusal is None:
                refusal = self._measurement.first(self._ranks.try_chain(case, candidate.label))
            if refusal is not None:
                candidate.reason = refusal
                return False
            # Only the chain: single calls would need one more program to compile for each candidate.
            candidate.check = self._measurement.check(case, candidate.label, is_target=True, calls=0)
        return candidate.check.passed

    def _row(self, case: Case, candidate: Candidate, requested: str, telemetry: tuple[Telemetry, ...]) -> Row:
        return self._measurement.row(
            case=case,
            implementation=self._implementation,
            requested=requested,
            reason=candidate.reason,
            config=to_plain(candidate.config),
            check=candidate.check,
            samples_us={HEADLINE: candidate.samples} if candidate.samples else {},
            telemetry=telemetry if candidate.check else (),
        )

    def _record_winner(self, case: Case, rounds: Sequence[Sequence[RowSummary]]) -> None:
        """Write the winner to the table: the heuristic's config, unless another one is faster by ``min_gain``."""
        won = winner(rounds, min_gain=self._tuning.min_gain)
        if won is None:
            self._measurement.announce(f"{case}: no config passed its check: nothing for the table")
            return
        best, reference = won
        assert best.config
        assert best.headline_us
        assert reference.headline_us
        entry = Entry(
            shape=self._shape(case),
            implementation=self._implementation,
            config=from_plain(self._implementation, best.config, case.op.function),
            us=round(best.headline_us, 2),
            heuristic_us=round(reference.headline_us, 2),
            date=best.time[: len("2000-01-01")],
            jax=self._ranks.members[0].versions["jax"],
        )
        add_entry("tuning.table", self._winners_path, entry)
        self._measurement.announce(f"{case}: {winner_sentence(best, reference)}; in {self._winners_path}")


def _refuse(settings: Settings) -> None:
    kernel, tuning, fraction = settings.kernel, settings.tuning, settings.cluster.gpu_memory_fraction
    if settings.cluster.world is World.per_island:
        raise UsageError("cluster.world=per_island is not for jobs.tune, which tunes over one gang: use whole")
    if (minutes := settings.timing.soak_minutes) is not None:
        raise UsageError(f"timing.soak_minutes={minutes} is for jobs.bench: jobs.tune has no soak, leave it out")
    tunable = ["auto", *(name for name, needs in IMPLEMENTATIONS.items() if needs.is_tunable)]
    if kernel.implementation.value not in tunable:
        raise UsageError(
            f"kernel.implementation={kernel.implementation.value} can't be tuned; use one of {', '.join(tunable)}"
        )
    if layers := [op for op in ops_of(settings.problem) if op.is_layer]:
        raise UsageError(
            f"problem.op={layers[0]} can't be tuned: it has two kernels; tune all_gather_matmul and "
            "matmul_reduce_scatter, and pass their table as kernel.table"
        )
    if kernel.config:
        raise UsageError(f"kernel.{min(kernel.config)} is set, but jobs.tune searches for it: leave it out")
    # One more executable: the single calls of the fastest candidate.
    if (tuning.round_size + 1) * fraction > 1:
        raise UsageError(
            f"tuning.round_size={tuning.round_size} executables and one more don't fit in memory together: each "
            f"maps cluster.gpu_memory_fraction={fraction} of a GPU's memory; at most {int(1 / fraction) - 1} do"
        )


def _unfinished(settings: Settings, cases: Sequence[Case], rows: Sequence[RowSummary]) -> list[Case]:
    if not all(row.is_candidate for row in rows):
        raise UsageError(f"resume={settings.resume} is a run directory of jobs.bench, not of jobs.tune")
    finished = {row.case for row in rows if ends_case(row)}
    return [case for case in cases if case not in finished]


def _steps(case: Case, requests: Sequence[Request], settings: Settings, device_kind: str) -> list[Step]:
    return tuning_steps(case, requests[0].implementation, settings, device_kind)


TUNE = Kind(
    refuse=_refuse,
    unfinished=_unfinished,
    steps=_steps,
    runner=lambda measurement, requests, winners_path: Tuner(measurement, requests[0], winners_path).run,
    writes_table=True,
)
