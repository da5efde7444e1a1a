"""One case over a gang: check every implementation, time them in turn, make the rows."""

from __future__ import annotations

import dataclasses
import datetime
import secrets
import statistics
from collections.abc import Callable
from typing import Any

from jobs.errors import InfrastructureError
from jobs.gang.gang import Gang
from jobs.measure.profile import Profile
from jobs.measure.programs import LOCAL, Opened, Request
from jobs.records import Case, Check, Row, Spread, Telemetry
from jobs.results.derive import derive
from jobs.settings import Fault, Settings, kernel_config

BASELINE = "baseline"
Samples = dict[str, list[list[list[float]]]]  # by time's name: [rank][burst][sample]


def requests_of(settings: Settings) -> list[Request]:
    """The implementation that the config asks for, then the baselines beside it."""
    wanted = settings.kernel.implementation.value
    baselines = [Request(BASELINE, name) for name in settings.timing.baselines if name != wanted]
    return [Request(wanted, wanted, kernel_config(settings.kernel)), *baselines]


class Benchmark:
    """Drives the ranks of ``gang`` through cases, one step on all ranks at a time."""

    def __init__(
        self,
        gang: Gang,
        settings: Settings,
        attempt: int,
        *,
        report: Callable[[str], None],
        announce: Callable[[str], None],
    ) -> None:
        self._gang = gang
        self._settings = settings
        self._attempt = attempt
        self._report = report
        self._announce = announce
        self._device_kind = gang.members[0].device_kind

    @staticmethod
    def num_steps(settings: Settings) -> int:
        """How often ``report`` is called for a case."""
        return 1 + len(requests_of(settings)) * 2 + settings.timing.bursts

    def run(self, case: Case) -> list[Row]:
        """Rows of one case: a time only where the check passed on every rank.

        Raises:
          UsageError: a request can't run on this case.
          GangLost: a rank died, or the gang hangs.
          InfrastructureError: a rank is too slow, or chose differently from the others.
        """
        timing = self._settings.timing
        self._report(f"{case}: inputs")
        requests = requests_of(self._settings)
        opened = self._agreed(self._call("open_case", case, requests, timing, _seed(), doing=f"opening {case}"), case)
        # `auto` may take what is a baseline too: one row stands for both.
        plan: dict[str, tuple[Opened, Request]] = {}
        for o, r in zip(opened, requests, strict=True):
            plan.setdefault(o.implementation, (o, r))
            if r.implementation == "auto":
                self._announce(f"{case}: auto takes {o.implementation}: {o.reason}")
            if r.config and o.config is None:
                self._announce(
                    f"{case}: {o.implementation} has no tiles, so kernel.{', kernel.'.join(r.config)} don't apply"
                )
        checks = {name: self._check(case, name, r.requested != BASELINE) for name, (_, r) in plan.items()}
        passed = [name for name in plan if checks[name].passed]
        for name in passed:
            self._report(f"{case}: {name}: warm-up")
            self._call("warm_up", name, timing.warmup, doing=f"warming up {name} on {case}")
        samples, telemetry = self._time(case, passed)
        profiles = self._profile(case, passed, samples)
        self._call("close_case", doing=f"closing {case}")
        rows = []
        for name, (o, r) in plan.items():
            rows.append(
                Row(
                    case=case,
                    implementation=name,
                    requested=r.requested,
                    reason=o.reason,
                    config=o.config,
                    check=checks[name],
                    samples_us=samples.get(name, {}),
                    kernels_us=_slowest(profiles[name]).kernels_us if name in profiles else {},
                    telemetry=telemetry,
                    time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                    attempt=self._attempt,
                    **_spreads(samples.get(name, {})),
                )
            )
        return self._with_derived(rows)

    def _check(self, case: Case, name: str, is_target: bool) -> Check:
        self._report(f"{case}: {name}: check")
        settings, timing = self._settings.check, self._settings.timing
        fault = settings.fault if is_target else Fault.none
        ranks = self._call(
            "check", name, settings.calls, _seed(), fault, timing.chain_length, doing=f"checking {name} on {case}"
        )
        return Check.of_ranks(ranks)

    def _time(self, case: Case, names: list[str]) -> tuple[dict[str, Samples], tuple[Telemetry, ...]]:
        """Bursts of each implementation in turn, so that all of them meet the same clocks and temperatures."""
        timing, num_ranks = self._settings.timing, case.num_ranks
        samples: dict[str, Samples] = {
            name: {t: [[] for _ in range(num_ranks)] for t in ("in_graph_us", "call_us")} for name in names
        }
        self._call("start_sampling", doing="starting NVML")
        for burst in range(timing.bursts):
            self._report(f"{case}: burst {burst + 1}/{timing.bursts}")
            for name in names:
                ranks = self._call("burst", name, burst, timing, doing=f"timing {name} on {case}")
                for rank, times in enumerate(ranks):
                    for time_name, values in times.items():
                        samples[name][time_name][rank].append(values)
        telemetry = self._call("stop_sampling", doing="stopping NVML")
        return samples, tuple(t for t in telemetry if t is not None)

    def _profile(self, case: Case, names: list[str], samples: dict[str, Samples]) -> dict[str, list[Profile]]:
        """Device times, added to ``samples`` as one burst; nothing on CPUs."""
        if not names:
            return {}
        by_rank = self._call("profile", names, self._settings.timing.profiled_calls, doing=f"profiling {case}")
        if any(profiles is None for profiles in by_rank):
            return {}
        found = {name: [profiles[i] for profiles in by_rank] for i, name in enumerate(names)}
        for name, profiles in found.items():
            samples[name]["kernel_us"] = [[p.kernel_us] for p in profiles]
            samples[name]["device_us"] = [[p.device_us] for p in profiles]
        return found

    def _with_derived(self, rows: list[Row]) -> list[Row]:
        headlines = {row.implementation: row.headline_us for row in rows}
        return [
            dataclasses.replace(
                row,
                derived=derive(
                    row.case,
                    row.headline_us,
                    local_us=headlines.get("local"),
                    xla_us=headlines.get("xla"),
                    device_kind=self._device_kind,
                    communicates=row.implementation != LOCAL,
                ),
            )
            if row.headline_us is not None
            else row
            for row in rows
        ]

    def _agreed(self, by_rank: list[list[Opened]], case: Case) -> list[Opened]:
        """What the ranks opened; ranks that chose differently would wait for each other for ever."""
        for rank, opened in enumerate(by_rank):
            if opened != by_rank[0]:
                host = self._gang.members[rank].host
                raise InfrastructureError(
                    f"{case}: rank {rank} on {host} would run {opened}, but rank 0 {by_rank[0]}; ranks must be alike"
                )
        return by_rank[0]

    def _call(self, method: str, *args: Any, doing: str) -> list[Any]:
        return self._gang.call(method, *args, timeout_s=self._settings.cluster.step_timeout_s, doing=doing)


def _seed() -> int:
    """Fresh for each use; small enough that a rank can count up from it."""
    return secrets.randbits(30)


def _spreads(samples: Samples) -> dict[str, Any]:
    """Of each time over ranks, from each rank's median over all its samples."""
    medians = {
        name: [statistics.median(value for burst in rank for value in burst) for rank in ranks]
        for name, ranks in samples.items()
    }
    return {name: Spread.over(values) for name, values in medians.items()}


def _slowest(profiles: list[Profile]) -> Profile:
    return max(profiles, key=lambda p: sum(p.kernels_us.values()))
