"""Device times from the profiler: each kernel of a call, and the span of the whole call. GPUs only."""

from __future__ import annotations

import dataclasses
import re
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

# Work of the runtime around a multiply, which `kernel_us` leaves out and `device_us` counts.
_OVERHEAD = re.compile(r"memcpy|memset|barrier|^(loop|input|wrapped)_", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One event on the device's timeline, in nanoseconds."""

    name: str
    start_ns: float
    end_ns: float

    @property
    def time_us(self) -> float:
        """How long it ran."""
        return (self.end_ns - self.start_ns) / 1e3

    @property
    def multiplies(self) -> bool:
        """Whether it gathers or multiplies, rather than copies, clears or synchronizes."""
        return not _OVERHEAD.search(self.name)


@dataclasses.dataclass(frozen=True)
class Profile:
    """Device times of an implementation on one rank, in microseconds."""

    kernel_us: list[float]
    """For each call, the summed time of the kernels that gather or multiply."""
    device_us: list[float]
    """For each call, from its first kernel's start to its last one's end."""
    kernels_us: dict[str, float]
    """Median over calls of the summed time of each kernel, by name."""

    def as_span(self) -> Profile:
        """With ``kernel_us`` as the span of the whole call: for kernels and copies of several streams at once."""
        return dataclasses.replace(self, kernel_us=self.device_us)


def profile(
    calls: Sequence[tuple[Callable[..., Any], Sequence[tuple[Any, Any]]]],
    *,
    count: int,
    align_on_device: Callable[[], str],
) -> list[Profile] | None:
    """Trace ``count`` calls of each function with its operand sets, in turn; ``None`` where there is no timeline.

    ``align_on_device`` enqueues work that keeps the device busy until the call behind it is enqueued too, and that ends
    on all ranks at the same moment; it returns the name of its program, by which its kernels are told apart.
    """
    with tempfile.TemporaryDirectory(prefix="cmkernel_trace_") as folder:
        with jax.profiler.trace(folder):
            for i in range(count):
                for call, sets in calls:
                    aligner = align_on_device()
                    call(*sets[i % len(sets)]).block_until_ready()
        traces = list(Path(folder).rglob("*.xplane.pb"))
        if not traces:
            return None
        groups = _calls(jax.profiler.ProfileData.from_file(str(traces[0])), aligner)
    if not groups:
        return None
    if len(groups) != count * len(calls):
        raise RuntimeError(f"the profiler saw {len(groups)} calls of {count * len(calls)}")
    return [_summarize(groups[i :: len(calls)]) for i in range(len(calls))]


def _summarize(groups: list[list[Kernel]]) -> Profile:
    names = sorted({kernel.name for group in groups for kernel in group})
    return Profile(
        kernel_us=[sum(k.time_us for k in group if k.multiplies) for group in groups],
        device_us=[(max(k.end_ns for k in group) - min(k.start_ns for k in group)) / 1e3 for group in groups],
        kernels_us={
            n: statistics.median(sum(k.time_us for k in group if k.name == n) for group in groups) for n in names
        },
    )


def _calls(data: jax.profiler.ProfileData, aligner: str) -> list[list[Kernel]]:
    """Kernels of each call, in order: what lies between one run of the aligner and the next."""
    timeline: list[tuple[float, Kernel | None]] = []
    for plane in data.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                stats = dict(event.stats)
                kernel = Kernel(event.name, event.start_ns, event.start_ns + event.duration_ns)
                timeline.append((kernel.start_ns, None if stats.get("hlo_module") == aligner else kernel))
    timeline.sort(key=lambda item: item[0])
    groups: list[list[Kernel]] = []
    after_aligner = False
    for _, found in timeline:
        if found is None:
            after_aligner = True
            continue
        if after_aligner:
            groups.append([])
            after_aligner = False
        if groups:
            groups[-1].append(found)
    return groups
