"""One case over a gang: check every implementation, time them in turn, make the rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cmkernel.measured_timeline import measured_timeline
from jobs.config.schema import Settings
from jobs.driver.kind import Kind
from jobs.driver.measurement import Measurement
from jobs.errors import UsageError
from jobs.measure.profile import Profile
from jobs.measure.programs import Opened, Request
from jobs.measure.ring_stamps import RING, RingStamps
from jobs.records.case import Case
from jobs.records.check import Check
from jobs.records.op import Op
from jobs.records.row import Row, RowSummary, Samples, Telemetry
from jobs.results.disk.journal import finished_cases
from jobs.results.terminal.steps import Step, burst_name, steps_of


class Benchmark:
    """Drives the ranks of a measurement through cases, one step on all ranks at a time."""

    def __init__(self, measurement: Measurement, requests: Sequence[Request]) -> None:
        self._measurement = measurement
        self._ranks = measurement.ranks
        self._timing = measurement.settings.timing
        self._requests = requests

    def run(self, case: Case, rows: Sequence[RowSummary] = ()) -> Iterator[list[Row]]:
        """Measure one case and yield its rows as one list, because they are measured together.

        A row has times if its check passed on every rank; the row of a baseline that can't run has the reason instead.

        Args:
          case: case to measure.
          rows: the job's rows so far; those of this case, left by a gang that was lost, aren't yielded again.

        Raises:
          UsageError: ``kernel.implementation`` can't run on this case.
          GangLost: a rank died, or the gang hangs.
          InfrastructureError: a rank is too slow, or chose differently from the others.
        """
        measurement = self._measurement
        measurement.begin(Step(case, "inputs"))
        # `auto` may choose an implementation that is also a baseline: one row serves both.
        plan: dict[str, tuple[Opened, Request]] = {}
        for opened, request in zip(measurement.open(case, self._requests), self._requests, strict=True):
            plan.setdefault(opened.implementation, (opened, request))
            self._announce(case, opened, request)
        checks = self._check(case, plan)
        passed = {name: plan[name][1].implementation for name, check in checks.items() if check.passed}
        for name, requested in passed.items():
            measurement.begin(Step(case, "warm-up", requested), name)
            self._ranks.warm_up(case, name, self._timing.warmup)
        samples, telemetry = self._time(case, passed)
        profiles = self._profile(case, list(passed), samples)
        timeline = self.timeline(case, list(passed))
        self._ranks.close_case(case)
        made = [
            measurement.row(
                case=case,
                implementation=name,
                requested=request.requested,
                reason=opened.reason,
                config=opened.config,
                check=checks.get(name),
                samples_us=samples.get(name, {}),
                kernels_us=_slowest(profiles[name]).kernels_us if name in profiles else {},
                telemetry=telemetry,
                timeline=timeline if name == RING else [],
            )
            for name, (opened, request) in plan.items()
        ]
        written = {(row.case, row.implementation) for row in rows}
        yield [row for row in measurement.with_derived(made) if (row.case, row.implementation) not in written]

    def timeline(self, case: Case, names: Sequence[str]) -> list[list[dict[str, Any]]]:
        """Device steps of each rank in one call of ``mosaic_gpu``; empty if it didn't run, or runs without stamps.

        Only the kernel of ``all_gather_matmul`` has stamps, on more than one rank.
        """
        is_stamped = case.op is Op.all_gather_matmul and case.num_ranks > 1
        if RING not in names or not is_stamped or not self._timing.timeline:
            return []
        by_rank = self._ranks.stamp(case)
        reason = self._measurement.first([rank if isinstance(rank, str) else None for rank in by_rank])
        if reason is not None:
            self._measurement.announce(f"{case}: no timeline of {RING}: {reason}")
            return []
        stamps = [rank for rank in by_rank if isinstance(rank, RingStamps)]
        timeline = measured_timeline(stamps[0].protocol, [rank.stamps for rank in stamps])
        return [[dataclasses.asdict(step) for step in steps] for steps in timeline]

    def _announce(self, case: Case, opened: Opened, request: Request) -> None:
        """Report what a request resolved to when that isn't obvious."""
        announce = self._measurement.announce
        if not opened.runs:
            announce(f"{case}: {opened.implementation} can't run: {opened.reason}")
        if request.implementation == "auto":
            announce(f"{case}: auto takes {opened.implementation}: {opened.reason}")
        owner = self._measurement.settings.kernel.config_name
        if request.config and opened.implementation != owner:
            options = ", ".join(f"kernel.{option}" for option in request.config)
            announce(f"{case}: {options}: of {owner}, so {opened.implementation} runs without")

    def _check(self, case: Case, plan: Mapping[str, tuple[Opened, Request]]) -> dict[str, Check]:
        checks = {}
        for name, (opened, request) in plan.items():
            if opened.runs:
                self._measurement.begin(Step(case, "check", request.implementation), name)
                checks[name] = self._measurement.check(case, name, is_target=not request.is_baseline)
        return checks

    def _time(self, case: Case, names: Mapping[str, str]) -> tuple[dict[str, Samples], tuple[Telemetry, ...]]:
        """Time the implementations burst by burst in turn, so that all run at the same clocks and temperatures.

        ``names`` maps each implementation that runs to its name in the config.
        """
        samples: dict[str, Samples] = {
            name: {time: [[] for _ in range(case.num_ranks)] for time in ("in_graph_us", "call_us")} for name in names
        }
        self._ranks.start_sampling()
        for burst in range(self._timing.bursts):
            for name, requested in names.items():
                step = Step(case, burst_name(burst, self._timing.bursts), requested)
                self._measurement.begin(step, name, samples)
                for rank, times in enumerate(self._ranks.burst(case, name, burst, self._timing)):
                    for time_name, values in times.items():
                        samples[name][time_name][rank].append(values)
        return samples, self._ranks.stop_sampling()

    def _profile(self, case: Case, names: list[str], samples: dict[str, Samples]) -> dict[str, list[Profile]]:
        """Profile each implementation and add its device times to ``samples`` as one burst; empty on CPUs."""
        if not names:
            return {}
        if self._ranks.on_gpus:
            self._measurement.begin(Step(case, "profile"), None, samples)
        by_rank = self._ranks.profile(case, names, self._timing.profiled_calls)
        by_name = {
            name: [profiles[name] for profiles in by_rank]
            for name in names
            if all(name in profiles for profiles in by_rank)
        }
        for name, profiles in by_name.items():
            samples[name]["kernel_us"] = [[p.kernel_us] for p in profiles]
            samples[name]["device_us"] = [[p.device_us] for p in profiles]
        return by_name


def _slowest(profiles: list[Profile]) -> Profile:
    return max(profiles, key=lambda p: sum(p.kernels_us.values()))


def _unfinished(settings: Settings, cases: Sequence[Case], rows: Sequence[RowSummary]) -> list[Case]:
    if any(row.is_candidate for row in rows):
        raise UsageError(f"resume={settings.resume} is a run directory of jobs.tune, not of jobs.bench")
    finished = finished_cases(rows, baselines=settings.timing.baselines)
    return [case for case in cases if case not in finished]


def _steps(case: Case, requests: Sequence[Request], settings: Settings, device_kind: str) -> list[Step]:
    return steps_of(case, [request.implementation for request in requests], settings, device_kind)


BENCH = Kind(
    refuse=lambda settings: None,
    unfinished=_unfinished,
    steps=_steps,
    runner=lambda measurement, requests, winners_path: Benchmark(measurement, requests).run,
)
