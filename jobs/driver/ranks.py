"""Typed calls to the ranks of a gang: each method runs on all of them at once and returns their answers by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.config.choices import Fault
from jobs.config.schema import ClusterSettings, TimingSettings
from jobs.gang.gang import Gang
from jobs.gang.neighbours import layout
from jobs.measure.profile import Profile
from jobs.measure.programs import Opened, Request
from jobs.measure.ring_stamps import RING, RingStamps
from jobs.measure.torch_fused import Readiness
from jobs.records.case import Case
from jobs.records.check import RankCheck
from jobs.records.member import Member
from jobs.records.row import Telemetry
from jobs.records.soak import RankSlice


class Ranks:
    """Methods of ``jobs.measure.session.Session``, called on all ranks.

    Every method raises the errors of ``Gang.call``: a rank died or hangs, a step took longer than
    ``cluster.step_timeout_s``, or a rank refuses the user's settings.
    """

    def __init__(self, gang: Gang, settings: ClusterSettings) -> None:
        self._gang = gang
        self._timeout_s = settings.step_timeout_s
        self.layout = layout(gang.members, settings)
        """Placement of the ranks on hosts."""

    @property
    def members(self) -> tuple[Member, ...]:
        """Members of the gang, by rank."""
        return self._gang.members

    @property
    def device_kind(self) -> str:
        """Name of the devices in jax."""
        return self.members[0].device_kind

    @property
    def on_gpus(self) -> bool:
        """True if every rank has a GPU."""
        return self.members[0].gpu_uuid is not None

    def links(self) -> list[str]:
        """Name of each rank's connection to the others."""
        return self._call("links", doing="reading links")

    def num_sms(self) -> list[int | None]:
        """Streaming multiprocessors of each GPU; ``None`` on CPUs."""
        return self._call("num_sms", doing="asking for the number of SMs")

    def open_case(
        self, case: Case, requests: Sequence[Request], timing: TimingSettings, seed: int
    ) -> list[list[Opened]]:
        """Draw operands and build the programs; returns the result of each request."""
        return self._call("open_case", case, list(requests), self.layout, timing, seed, doing=f"opening {case}")

    def close_case(self, case: Case) -> None:
        """Drop operands and programs."""
        self._call("close_case", doing=f"closing {case}")

    def check(
        self, case: Case, name: str, *, calls: int, seed: int, fault: Fault, chain_length: int
    ) -> list[RankCheck]:
        """Compare the results of the programs called ``name`` with the oracle."""
        return self._call("check", name, calls, seed, fault, chain_length, doing=f"checking {name} on {case}")

    def warm_up(self, case: Case, name: str, calls: int) -> None:
        """Run both programs before they are timed."""
        self._call("warm_up", name, calls, doing=f"warming up {name} on {case}")

    def try_chain(self, case: Case, name: str) -> list[str | None]:
        """Compile and run a candidate's chain; returns the reason for a failure, or ``None``."""
        return self._call("try_chain", name, doing=f"compiling a candidate on {case}")

    def burst(self, case: Case, name: str, burst: int, timing: TimingSettings) -> list[dict[str, list[float]]]:
        """Samples of one burst, by the name of the time."""
        return self._call("burst", name, burst, timing, doing=f"timing {name} on {case}")

    def profile(self, case: Case, names: Sequence[str], calls: int) -> list[dict[str, Profile]]:
        """Device times of each of ``names``; empty on CPUs."""
        return self._call("profile", list(names), calls, doing=f"profiling {case}")

    def stamp(self, case: Case) -> list[RingStamps | str]:
        """Stamps of one call of ``mosaic_gpu``, or the reason why a rank has none."""
        return self._call("stamp", doing=f"stamping {RING} on {case}")

    def start_sampling(self) -> None:
        """Begin to sample each GPU's clock, power and temperature."""
        self._call("start_sampling", doing="starting NVML")

    def stop_sampling(self) -> tuple[Telemetry, ...]:
        """Summaries of the samples since ``start_sampling``; empty on CPUs."""
        by_rank: list[Telemetry | None] = self._call("stop_sampling", doing="stopping NVML")
        return tuple(telemetry for telemetry in by_rank if telemetry is not None)

    def soak(
        self, case: Case, name: str, *, iterations: int, seed: int, fault: Fault, fault_from: int, compiles: bool
    ) -> list[RankSlice]:
        """Repeat the call with fresh data, and check every result."""
        return self._call(
            "soak", name, iterations, seed, fault, fault_from, compiles, doing=f"soaking {name} on {case}"
        )

    def get_torch_ready(self, host: str) -> list[Readiness]:
        """Import torch; rank 0 listens at the address ``host``."""
        return self._call("get_torch_ready", host, doing="importing torch")

    def join_torch(self, host: str, port: int) -> list[str | None]:
        """Join a torch process group; returns the reason for a failure, or ``None``."""
        return self._call("join_torch", host, port, doing="joining a process group of torch")

    def _call(self, method: str, *args: Any, doing: str) -> list[Any]:
        return self._gang.call(method, *args, timeout_s=self._timeout_s, doing=doing)
