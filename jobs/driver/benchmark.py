"""One case over a gang: check every implementation, time them in turn, make the rows."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cmkernel import Table
from cmkernel.measured_timeline import measured_timeline
from jobs.config.schema import GATHERS, LOCALS, Fault, Settings, kernel_config, kernel_config_name
from jobs.config.tuned_table import absolute_table, read_table
from jobs.errors import InfrastructureError, UsageError
from jobs.gang.gang import Gang
from jobs.gang.neighbours import layout
from jobs.measure import torch_fused
from jobs.measure.profile import Profile
from jobs.measure.programs import Opened, Request
from jobs.measure.ring_stamps import RING, RingStamps
from jobs.records.layout import TWO_LEVEL
from jobs.records.row import BASELINE, Case, Check, Row, Samples, Telemetry, spreads
from jobs.results.analysis.best import Best, best_of_samples
from jobs.results.analysis.derive import derive, fastest_us
from jobs.results.disk.journal import finished_cases
from jobs.results.terminal.steps import Step, burst_name, steps_of


def requests_of(settings: Settings, table: Table | None = None) -> list[Request]:
    """The implementation that the config asks for, then the baselines beside it."""
    wanted = settings.kernel.implementation.value
    baselines = [Request(BASELINE, name, table=table) for name in settings.timing.baselines if name != wanted]
    return [Request(wanted, wanted, kernel_config(settings.kernel), table), *baselines]


class Benchmark:
    """Drives the ranks of ``gang`` through cases, one step on all ranks at a time."""

    def __init__(
        self,
        gang: Gang,
        settings: Settings,
        attempt: int,
        *,
        island: str | None = None,
        report: Callable[[Step, str, Best | None], None],
        announce: Callable[[str], None],
    ) -> None:
        self._gang = gang
        self._settings = settings
        self.attempt = attempt
        self.island = island
        self._report = report
        self._announce = announce
        self._table = read_table("kernel.table", settings.kernel.table)
        self._device_kind = gang.members[0].device_kind
        self._layout = layout(gang.members, settings.cluster)

    @staticmethod
    def settle(settings: Settings, run_dir: Path) -> Settings:
        """The settings that this kind of job runs by, also where it is resumed from another working directory."""
        del run_dir
        kernel = dataclasses.replace(settings.kernel, table=absolute_table(settings.kernel.table))
        return dataclasses.replace(settings, kernel=kernel)

    @staticmethod
    def unfinished(settings: Settings, cases: Sequence[Case], rows: Sequence[Row]) -> list[Case]:
        """Those of the ``cases`` of which ``rows``, the job's so far, lack some.

        Raises:
          UsageError: the rows are those of another kind of job.
        """
        if any(row.is_candidate for row in rows):
            raise UsageError(f"resume={settings.resume} is a run directory of jobs.tune, not of jobs.bench")
        finished = finished_cases(rows, baselines=settings.timing.baselines)
        return [case for case in cases if case not in finished]

    @staticmethod
    def steps(case: Case, settings: Settings, device_kind: str) -> list[Step]:
        """What ``report`` gets of a case, if nothing is skipped."""
        names = [request.implementation for request in requests_of(settings)]
        return steps_of(case, names, settings, device_kind)

    def run(self, case: Case, rows: Sequence[Row] = ()) -> Iterable[list[Row]]:
        """Rows of one case, in lists of those that were measured together: here a single one.

        A row has a time only where the check passed on every rank, or the reason why a baseline can't run. ``rows`` are
        the job's so far; of a case that was cut short, some may be there already.

        Raises:
          UsageError: what the config asks for can't run on this case.
          GangLost: a rank died, or the gang hangs.
          InfrastructureError: a rank is too slow, or chose differently from the others.
        """
        timing = self._settings.timing
        self._begin(Step(case, "inputs"))
        requests = requests_of(self._settings, self._table)
        opened = self._open(case, requests)
        # `auto` may take what is a baseline too: one row stands for both.
        plan: dict[str, tuple[Opened, Request]] = {}
        for o, r in zip(opened, requests, strict=True):
            plan.setdefault(o.implementation, (o, r))
            if not o.runs:
                self._announce(f"{case}: {o.implementation} can't run: {o.reason}")
            if r.implementation == "auto":
                self._announce(f"{case}: auto takes {o.implementation}: {o.reason}")
            if r.config and o.implementation != (owner := kernel_config_name(self._settings.kernel.implementation)):
                options = ", ".join(f"kernel.{option}" for option in r.config)
                self._announce(f"{case}: {options}: of {owner}, so {o.implementation} runs without")
        checks = {}
        for name, (o, r) in plan.items():
            if o.runs:
                self._begin(Step(case, "check", r.implementation), name)
                checks[name] = self._check(case, name, not r.is_baseline)
        passed = {name: plan[name][1].implementation for name, check in checks.items() if check.passed}
        for name, asked in passed.items():
            self._begin(Step(case, "warm-up", asked), name)
            self.call("warm_up", name, timing.warmup, doing=f"warming up {name} on {case}")
        samples, telemetry = self._time(case, passed)
        profiles = self._profile(case, list(passed), samples)
        timeline = self._timeline(case, list(passed))
        self.call("close_case", doing=f"closing {case}")
        made = []
        for name, (o, r) in plan.items():
            made.append(
                Row(
                    case=case,
                    implementation=name,
                    requested=r.requested,
                    reason=o.reason,
                    config=o.config,
                    check=checks.get(name),
                    samples_us=samples.get(name, {}),
                    kernels_us=_slowest(profiles[name]).kernels_us if name in profiles else {},
                    telemetry=telemetry,
                    timeline=timeline if name == RING else [],
                    time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                    attempt=self.attempt,
                    island=self.island,
                    **spreads(samples.get(name, {})),
                )
            )
        written = {(row.case, row.implementation) for row in rows}
        return [[row for row in self._with_derived(made) if (row.case, row.implementation) not in written]]

    def open_target(self, case: Case) -> str:
        """Open ``case`` for ``kernel.implementation`` alone; what really runs."""
        (opened,) = self._open(case, requests_of(self._settings, self._table)[:1])
        return opened.implementation

    def _open(self, case: Case, requests: list[Request]) -> list[Opened]:
        """What each request turned into, on all ranks; a baseline that one rank can't run runs on none."""
        refused = {}
        if any(r.implementation == torch_fused.NAME for r in requests) and self._torch_refusal is not None:
            refused[torch_fused.NAME] = Opened(torch_fused.NAME, self._torch_refusal, None, runs=False)
        if (reason := self._layout.two_level_refusal) is not None:
            if any(r.requested == TWO_LEVEL for r in requests):
                raise UsageError(
                    f"kernel.implementation={TWO_LEVEL} {reason}; use kernel=ppermute, another cluster.num_ranks or, "
                    "on GPUs, cluster.gpus_per_host"
                )
            refused[TWO_LEVEL] = Opened(TWO_LEVEL, reason, None, runs=False)
        tried = [r for r in requests if r.implementation not in refused]
        arguments = (case, tried, self._layout, self._settings.timing, seed())
        by_rank = self.call("open_case", *arguments, doing=f"opening {case}")
        opened = iter(self._agreed(by_rank, tried, case))
        return [refused.get(r.implementation) or next(opened) for r in requests]

    @functools.cached_property
    def _torch_refusal(self) -> str | None:
        """Why the ranks can't be a process group of torch; ``None`` once they are one."""
        members = self._gang.members
        if len({member.node_id for member in members}) > 1:
            return "its symmetric memory joins the GPUs of one host, and the ranks are on several"
        host = members[0].ip
        ready = self.call("get_torch_ready", host, doing="importing torch")
        if (reason := self._first([r.refusal for r in ready])) is not None:
            return reason
        return self._first(self.call("join_torch", host, ready[0].port, doing="joining a process group of torch"))

    def _first(self, reasons: list[str | None]) -> str | None:
        """The first rank's reason, with the rank where not all have it."""
        for rank, reason in enumerate(reasons):
            if reason is not None:
                return reason if all(r == reason for r in reasons) else f"{self._gang.members[rank]}: {reason}"
        return None

    def _begin(self, step: Step, name: str | None = None, samples: Mapping[str, Samples] | None = None) -> None:
        """Report a step, of the implementation that really runs, and the fastest one of the ``samples`` so far."""
        text = f"{step.case}: {step.doing}" if name is None else f"{step.case}: {name}: {step.doing}"
        self._report(step, text, best_of_samples(samples or {}))

    def _check(self, case: Case, name: str, is_target: bool, calls: int | None = None) -> Check:
        settings, timing = self._settings.check, self._settings.timing
        calls = settings.calls if calls is None else calls
        # With fault_after the soak is to find it.
        fault = settings.fault if is_target and settings.fault_after is None else Fault.none
        ranks = self.call("check", name, calls, seed(), fault, timing.chain_length, doing=f"checking {name} on {case}")
        return Check.of_ranks(ranks)

    def _time(self, case: Case, names: Mapping[str, str]) -> tuple[dict[str, Samples], tuple[Telemetry, ...]]:
        """Bursts of each implementation in turn, so that all of them meet the same clocks and temperatures.

        ``names`` are those of the implementations, each with what the config calls it.
        """
        timing, num_ranks = self._settings.timing, case.num_ranks
        samples: dict[str, Samples] = {
            name: {t: [[] for _ in range(num_ranks)] for t in ("in_graph_us", "call_us")} for name in names
        }
        self.call("start_sampling", doing="starting NVML")
        for burst in range(timing.bursts):
            for name, asked in names.items():
                self._begin(Step(case, burst_name(burst, timing.bursts), asked), name, samples)
                ranks = self.call("burst", name, burst, timing, doing=f"timing {name} on {case}")
                for rank, times in enumerate(ranks):
                    for time_name, values in times.items():
                        samples[name][time_name][rank].append(values)
        telemetry = self.call("stop_sampling", doing="stopping NVML")
        return samples, tuple(t for t in telemetry if t is not None)

    def _profile(self, case: Case, names: list[str], samples: dict[str, Samples]) -> dict[str, list[Profile]]:
        """Device times, added to ``samples`` as one burst; nothing on CPUs."""
        if not names:
            return {}
        if self._gang.members[0].gpu_uuid:
            self._begin(Step(case, "profile"), None, samples)
        by_rank = self.call("profile", names, self._settings.timing.profiled_calls, doing=f"profiling {case}")
        found = {
            name: [profiles[name] for profiles in by_rank]
            for name in names
            if all(name in profiles for profiles in by_rank)
        }
        for name, profiles in found.items():
            samples[name]["kernel_us"] = [[p.kernel_us] for p in profiles]
            samples[name]["device_us"] = [[p.device_us] for p in profiles]
        return found

    def _timeline(self, case: Case, names: list[str]) -> list[list[dict[str, Any]]]:
        """The device steps of each rank in one call of ``mosaic_gpu``; nothing where it didn't run, or one rank did."""
        if RING not in names or case.num_ranks == 1 or not self._settings.timing.timeline:
            return []
        by_rank: list[RingStamps | str] = self.call("stamp", doing=f"stamping {RING} on {case}")
        if (reason := self._first([rank if isinstance(rank, str) else None for rank in by_rank])) is not None:
            self._announce(f"{case}: no timeline of {RING}: {reason}")
            return []
        found = [rank for rank in by_rank if isinstance(rank, RingStamps)]
        timeline = measured_timeline(found[0].protocol, [rank.stamps for rank in found])
        return [[dataclasses.asdict(step) for step in steps] for steps in timeline]

    def _with_derived(self, rows: list[Row]) -> list[Row]:
        headlines = {row.implementation: row.headline_us for row in rows}
        return [
            dataclasses.replace(
                row,
                derived=derive(
                    row.case,
                    row.headline_us,
                    local_us=fastest_us(LOCALS, headlines),
                    xla_us=fastest_us(GATHERS, headlines),
                    device_kind=self._device_kind,
                    communicates=row.implementation not in LOCALS,
                ),
            )
            if row.headline_us is not None
            else row
            for row in rows
        ]

    def _agreed(self, by_rank: list[list[Opened]], requests: list[Request], case: Case) -> list[Opened]:
        """What the ranks opened; ranks that chose differently would wait for each other for ever."""
        agreed = []
        for request, of_ranks in zip(requests, zip(*by_rank, strict=True), strict=True):
            first = of_ranks[0]
            reason = self._first([None if opened.runs else opened.reason for opened in of_ranks])
            odd = [(m, o) for m, o in zip(self._gang.members, of_ranks, strict=True) if o != first]
            if reason is None and odd:
                reason = f"{odd[0][0]} would run {odd[0][1]}, but rank 0 {first}; ranks must be alike"
            if reason is None:
                agreed.append(first)
            elif request.is_optional:
                agreed.append(Opened(first.implementation, reason, None, runs=False))
            else:
                raise InfrastructureError(f"{case}: {reason}")
        return agreed

    def call(self, method: str, *args: Any, doing: str) -> list[Any]:
        """``Gang.call`` within ``cluster.step_timeout_s``."""
        return self._gang.call(method, *args, timeout_s=self._settings.cluster.step_timeout_s, doing=doing)


def seed() -> int:
    """Fresh for each use; small enough that a rank can count up from it."""
    return secrets.randbits(30)


def _slowest(profiles: list[Profile]) -> Profile:
    return max(profiles, key=lambda p: sum(p.kernels_us.values()))
