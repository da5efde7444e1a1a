"""The candidates of a case over a gang: in rounds, each with the heuristic's config, and the winner into a table."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import functools
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cmkernel.candidates import kernel_candidates, ppermute_candidates
from cmkernel.config import Config, from_plain, to_plain
from cmkernel.tuned import Entry, Shape, shipped
from jobs.config.schema import Implementation, Settings, World, kernel_config
from jobs.config.tuned_table import add_entry, read_table
from jobs.driver.benchmark import Benchmark
from jobs.driver.candidate import (
    LOST,
    REFERENCE,
    ROUND,
    Candidate,
    changes,
    complete_rounds,
    done_with,
    ends_case,
    handicap,
    headline_us,
    relative,
    told,
)
from jobs.errors import GangLost, InfrastructureError, UsageError
from jobs.gang.cluster import submission_id
from jobs.measure.programs import Opened, Request
from jobs.records.row import HEADLINE, Case, Row, Telemetry, spreads
from jobs.results.disk.run_dir import absolute
from jobs.results.terminal.steps import Step, burst_name, round_name, tuning_steps

TABLE_NAME = "tuned.jsonl"
_TUNED = (Implementation.auto, Implementation.mosaic_gpu, Implementation.ppermute)


class Tuner(Benchmark):
    """A benchmark whose rows are the candidates of one implementation."""

    _trying: Candidate | None = None  # Whose program runs.

    @staticmethod
    def settle(settings: Settings, run_dir: Path) -> Settings:
        """With the path of the table.

        Raises:
          UsageError: the implementation has nothing to tune, an option of its config is set, the table can't be
            written, or islands or a soak are asked for.
        """
        if settings.cluster.world is World.per_island:
            raise UsageError("cluster.world=per_island is not for jobs.tune, which tunes over one gang: use whole")
        if (minutes := settings.timing.soak_minutes) is not None:
            raise UsageError(f"timing.soak_minutes={minutes} is for jobs.bench: jobs.tune has no soak, leave it out")
        kernel = settings.kernel
        if kernel.implementation not in _TUNED:
            raise UsageError(
                f"kernel.implementation={kernel.implementation.value} can't be tuned; use one of "
                f"{', '.join(implementation.value for implementation in _TUNED)}"
            )
        if options := kernel_config(kernel):
            raise UsageError(f"kernel.{min(options)} is set, and jobs.tune is to find it: leave it out")
        tuning, fraction = settings.tuning, settings.cluster.gpu_memory_fraction
        # And one more for the single calls of the fastest one.
        if (tuning.round_size + 1) * fraction > 1:
            raise UsageError(
                f"tuning.round_size={tuning.round_size} executables and one more don't fit beside each other, as each "
                f"maps cluster.gpu_memory_fraction={fraction} of a GPU's memory; at most {int(1 / fraction) - 1} do"
            )
        settings = copy.deepcopy(Benchmark.settle(settings, run_dir))
        path = absolute("tuning.table", settings.tuning.table or str(run_dir / TABLE_NAME), submission_id())
        if not path.parent.is_dir():
            raise UsageError(f"tuning.table={path}: {path.parent} is no folder")
        if path.exists():
            read_table("tuning.table", str(path))
            if not os.access(path, os.W_OK):
                raise UsageError(f"tuning.table={path}: the file isn't writable")
        try:
            # Here, not once the first case has been measured.
            tempfile.NamedTemporaryFile(dir=path.parent).close()
        except OSError as error:
            raise UsageError(f"tuning.table={path}: {path.parent} isn't writable ({error.strerror})") from error
        settings.tuning.table = str(path)
        return settings

    @staticmethod
    def unfinished(settings: Settings, cases: Sequence[Case], rows: Sequence[Row]) -> list[Case]:
        """Cases whose last round isn't complete.

        Raises:
          UsageError: the rows are those of another kind of job.
        """
        if not all(row.is_candidate for row in rows):
            raise UsageError(f"resume={settings.resume} is a run directory of jobs.bench, not of jobs.tune")
        finished = {row.case for row in rows if ends_case(row)}
        return [case for case in cases if case not in finished]

    @staticmethod
    def steps(case: Case, settings: Settings, device_kind: str) -> list[Step]:
        """What ``report`` gets of a case, at most."""
        return tuning_steps(case, settings.kernel.implementation.value, settings, device_kind)

    def run(self, case: Case, rows: Sequence[Row] = ()) -> Iterator[list[Row]]:
        """Rows of all candidates that no complete round among ``rows`` has, by round; then the table has the winner.

        Raises:
          UsageError: the implementation can't run on this case.
          GangLost: a rank died, or the gang hangs.
          InfrastructureError: a rank is too slow, or not like the others.
        """
        reference, *others = self._candidates(case)
        rows = [row for row in rows if row.case == case]
        rounds, done = complete_rounds(rows), done_with(rows)
        left = [config for config in others if to_plain(config) not in done]
        size = self._settings.tuning.round_size - 1
        batches = [left[start : start + size] for start in range(0, len(left), size)] or [[]]
        num_rounds = len(rounds) + len(batches)
        for number, batch in enumerate(batches, len(rounds) + 1):
            try:
                found = self._round(case, [reference, *batch], number, num_rounds)
            except GangLost as error:
                if (lost := self._trying) and lost.config != reference:
                    # It may be its fault: a config that hangs would cost each gang after this one, too.
                    lost = Candidate(lost.config, lost.label, f"{LOST}: {str(error).splitlines()[0]}")
                    yield [self._row(case, lost, ROUND.format(number, num_rounds), ())]
                raise
            rounds.append(found)
            for row in found[:-1]:
                self._announce(f"{case}: {told(row, found[-1])}")
            if number == num_rounds:
                self._conclude(case, rounds)
            yield found

    def _candidates(self, case: Case) -> list[Config]:
        """The heuristic's config, what the table in use has for the case, then those of ``cmkernel.candidates``."""
        tuning, shape = self._settings.tuning, self._shape(case)
        candidates: list[Config] = []
        if self._implementation == "mosaic_gpu":
            assert self._num_sms is not None
            candidates += kernel_candidates(**shape.sizes, num_sms=self._num_sms, slowest=tuning.max_modelled)
        else:
            candidates += ppermute_candidates(m_shard=case.m_shard)
        table = shipped() if self._table is None else self._table
        if (known := table.find(self._implementation, shape, self._num_sms)) is not None:
            candidates.insert(1, known.config)
        return list(dict.fromkeys(candidates))[: tuning.max_candidates]

    @property
    def _implementation(self) -> str:
        wanted = self._settings.kernel.implementation
        if wanted is Implementation.auto:
            return "mosaic_gpu" if self._gang.members[0].gpu_uuid else "ppermute"
        return wanted.value

    @functools.cached_property
    def _num_sms(self) -> int | None:
        found = self.call("num_sms", doing="asking for the number of SMs")
        if len(set(found)) > 1:
            raise InfrastructureError(f"ranks have GPUs with {sorted(set(found))} SMs; ranks must be alike")
        return found[0]

    def _shape(self, case: Case) -> Shape:
        sizes = {name: getattr(case, name) for name in ("num_ranks", "m_shard", "k", "n_shard", "dtype")}
        return Shape(device_kind=self._device_kind, **sizes)

    def _round(self, case: Case, configs: Sequence[Config], number: int, num_rounds: int) -> list[Row]:
        """Open, check and time these, the reference first; their rows, the reference's last."""
        requested, self._trying = ROUND.format(number, num_rounds), None
        self._begin(Step(case, round_name(number, "inputs")))
        candidates = [
            Candidate(config, f"candidate {place}", "a candidate" if place else "the heuristic's config")
            for place, config in enumerate(configs)
        ]
        requests = [
            Request(requested, self._implementation, dataclasses.asdict(c.config), label=c.label) for c in candidates
        ]
        opened = self._open(case, requests)
        ready = [c for c, o in zip(candidates, opened, strict=True) if self._is_ready(case, c, o, number)]
        if candidates[0].check is None:
            raise UsageError(f"{case}: {self._implementation} can't be tuned: {candidates[0].reason}")
        self.call("start_sampling", doing="starting NVML")
        if candidates[0] in ready:
            self._race(case, ready, number)
        telemetry = tuple(t for t in self.call("stop_sampling", doing="stopping NVML") if t is not None)
        self._check_fastest(case, [c for c in ready if c.samples], number)
        self.call("close_case", doing=f"closing {case}")
        rows = [self._row(case, c, requested, telemetry) for c in candidates[1:]]
        return self._with_derived([*rows, self._row(case, candidates[0], requested + REFERENCE, telemetry)])

    def _is_ready(self, case: Case, candidate: Candidate, opened: Opened, number: int) -> bool:
        """Whether it compiles and its chain is right; else it says why not."""
        self._trying = candidate
        self._begin(Step(case, round_name(number, candidate.label)), str(candidate))
        refusal = None if opened.runs else opened.reason
        if refusal is None:
            refusal = self._first(self.call("try_chain", candidate.label, doing=f"compiling a candidate on {case}"))
        if refusal is not None:
            candidate.reason = refusal
            return False
        # The chain alone: single calls would be one more program to compile for each candidate.
        candidate.check = self._check(case, candidate.label, True, calls=0)
        return candidate.check.passed

    def _race(self, case: Case, ready: Sequence[Candidate], number: int) -> None:
        """Bursts in turn, in another order each time; who is hopeless after one drops out, but not the reference."""
        tuning = self._settings.tuning
        timing = dataclasses.replace(
            self._settings.timing, iterations=0, bursts=tuning.bursts, chains=tuning.bursts * tuning.chains
        )
        for candidate in ready:
            candidate.samples = [[] for _ in range(case.num_ranks)]
        racing = list(ready)
        for burst in range(tuning.bursts):
            fastest = {f"{self._implementation} {c}": {HEADLINE: c.samples} for c in racing if burst}
            self._begin(Step(case, round_name(number, burst_name(burst, tuning.bursts))), None, fastest)
            first = burst % len(racing)
            for candidate in racing[first:] + racing[:first]:
                self._trying = candidate
                ranks = self.call("burst", candidate.label, burst, timing, doing=f"timing a candidate on {case}")
                for samples, times in zip(candidate.samples, ranks, strict=True):
                    samples.append(times[HEADLINE])
            if burst + 1 == tuning.bursts:
                break
            limit_us = tuning.early_stop * min(headline_us(c.samples) for c in racing)
            for candidate in racing[1:]:
                if headline_us(candidate.samples) > limit_us:
                    candidate.reason = f"a candidate, stopped after {burst + 1} of {tuning.bursts} bursts"
            racing = [c for c in racing if c is ready[0] or headline_us(c.samples) <= limit_us]

    def _check_fastest(self, case: Case, ready: Sequence[Candidate], number: int) -> None:
        """The whole check of the one that may go into the table; of the next one where it fails."""
        self._begin(Step(case, round_name(number, "check")))
        min_gain = self._settings.tuning.min_gain
        handicaps = {c.label: handicap(c.samples, ready[0].samples, min_gain=min_gain) for c in ready}
        for candidate in sorted(ready, key=lambda c: handicaps[c.label]):
            self._trying = candidate
            candidate.check = self._check(case, candidate.label, True)
            if candidate.check.passed:
                return
            candidate.samples = []

    def _row(self, case: Case, candidate: Candidate, requested: str, telemetry: tuple[Telemetry, ...]) -> Row:
        samples = {HEADLINE: candidate.samples} if candidate.samples else {}
        return Row(
            case=case,
            implementation=self._implementation,
            requested=requested,
            reason=candidate.reason,
            config=to_plain(candidate.config),
            check=candidate.check,
            samples_us=samples,
            telemetry=telemetry if candidate.check else (),
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            attempt=self.attempt,
            **spreads(samples),
        )

    def _conclude(self, case: Case, rounds: Sequence[Sequence[Row]]) -> None:
        """Put the fastest config into the table: the heuristic's, unless another one is faster by ``min_gain``."""
        min_gain = self._settings.tuning.min_gain
        raced = [
            (handicap(row.samples_us[HEADLINE], reference.samples_us[HEADLINE], min_gain=min_gain), row, reference)
            for *others, reference in rounds
            for row in [reference, *others]
            if row.samples_us and reference.samples_us
        ]
        if not raced:
            self._announce(f"{case}: no config passed its check: nothing for the table")
            return
        _, winner, reference = min(raced, key=lambda one: one[0])
        assert winner.config
        assert winner.headline_us
        assert reference.headline_us
        entry = Entry(
            shape=self._shape(case),
            implementation=self._implementation,
            config=from_plain(self._implementation, winner.config),
            us=round(winner.headline_us, 2),
            heuristic_us=round(reference.headline_us, 2),
            date=winner.time[: len("2000-01-01")],
            jax=self._gang.members[0].versions["jax"],
        )
        assert self._settings.tuning.table
        path = Path(self._settings.tuning.table)
        add_entry("tuning.table", path, entry)
        found = f"no config is faster than the heuristic's, {winner.headline_us:.2f} us"
        if winner is not reference:
            gain = 1 - relative(winner.samples_us[HEADLINE], reference.samples_us[HEADLINE])
            found = f"{changes(winner.config, reference.config)} takes {winner.headline_us:.2f} us, "
            found += f"{100 * gain:.1f} % less than the heuristic's config"
        self._announce(f"{case}: {found}; in {path}")
