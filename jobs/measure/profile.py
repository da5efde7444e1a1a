"""Device times from jax's profiler: each kernel of a call, and the span of the whole call. GPUs only."""

from __future__ import annotations

import dataclasses
import re
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

# The runtime's work around a multiply: `device_us` counts it, `kernel_us` doesn't.
_OVERHEAD = re.compile(r"memcpy|memset|barrier|^(loop|input|wrapped)_", re.IGNORECASE)
# A conversion after a GEMM that wrote float32 rounds its result: it is the second half of the multiply and counts.
_CONVERSION = re.compile(r"^(loop|wrapped)_convert")
_EXCHANGE = re.compile("nccl", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One event on the device's timeline, in nanoseconds."""

    name: str
    start_ns: float
    end_ns: float

    @property
    def time_us(self) -> float:
        """Duration in microseconds."""
        return (self.end_ns - self.start_ns) / 1e3

    @property
    def multiplies(self) -> bool:
        """The kernel gathers or multiplies; it doesn't copy, clear or synchronize."""
        return not _OVERHEAD.search(self.name)

    @property
    def is_gemm(self) -> bool:
        """The kernel multiplies; it doesn't gather."""
        return self.multiplies and not _EXCHANGE.search(self.name)

    @property
    def converts(self) -> bool:
        """The kernel changes the dtype of an array."""
        return bool(_CONVERSION.search(self.name))


@dataclasses.dataclass(frozen=True)
class Profile:
    """Device times of an implementation on one rank, in microseconds."""

    kernel_us: list[float]
    """Per call: summed time of the kernels that gather, multiply, or convert a multiply's result."""
    device_us: list[float]
    """Per call: time from the first kernel's start to the last one's end."""
    kernels_us: dict[str, float]
    """By kernel name: summed time in a call, median over calls."""

    def as_span(self) -> Profile:
        """Profile whose ``kernel_us`` is the span of the whole call: for kernels that overlap on several streams."""
        return dataclasses.replace(self, kernel_us=self.device_us)


def profile(
    calls: Sequence[tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]],
    *,
    count: int,
    align_on_device: Callable[[], str],
) -> list[Profile] | None:
    """Trace ``count`` calls of each function with its operand sets, in turn; ``None`` without a timeline.

    ``align_on_device`` enqueues work that keeps the device busy until the next call is enqueued and that ends on all
    ranks at the same moment. It returns the name of its program, which separates the calls in the trace.
    """
    with tempfile.TemporaryDirectory(prefix="cmkernel_trace_") as folder:
        with jax.profiler.trace(folder):
            for i in range(count):
                for call, sets in calls:
                    aligner = align_on_device()
                    jax.block_until_ready(call(*sets[i % len(sets)]))
        traces = list(Path(folder).rglob("*.xplane.pb"))
        if not traces:
            return None
        groups = _calls(jax.profiler.ProfileData.from_file(str(traces[0])), aligner)
    if not groups:
        return None
    if len(groups) != count * len(calls):
        raise RuntimeError(f"the profiler recorded {len(groups)} of {count * len(calls)} calls")
    return [_summarize(groups[i :: len(calls)]) for i in range(len(calls))]


def _summarize(groups: list[list[Kernel]]) -> Profile:
    names = sorted({kernel.name for group in groups for kernel in group})
    return Profile(
        kernel_us=[_kernel_us(group) for group in groups],
        device_us=[(max(k.end_ns for k in group) - min(k.start_ns for k in group)) / 1e3 for group in groups],
        kernels_us={
            n: statistics.median(sum(k.time_us for k in group if k.name == n) for group in groups) for n in names
        },
    )


def _kernel_us(call: list[Kernel]) -> float:
    total_us, multiplied = 0.0, False
    for kernel in call:
        if kernel.multiplies or (multiplied and kernel.converts):
            total_us += kernel.time_us
        multiplied = multiplied or kernel.is_gemm
    return total_us


def _calls(data: jax.profiler.ProfileData, aligner: str) -> list[list[Kernel]]:
    """Kernels of each call, in order: all between one run of the aligner and the next."""
    timeline: list[tuple[float, Kernel | None]] = []
    for plane in data.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                stats = dict(event.stats)
                is_aligner = stats.get("hlo_module") == aligner
                run = Kernel(event.name, event.start_ns, event.start_ns + event.duration_ns)
                timeline.append((run.start_ns, None if is_aligner else run))
    timeline.sort(key=lambda item: item[0])
    groups: list[list[Kernel]] = []
    after_aligner = False
    for _, kernel in timeline:
        if kernel is None:
            after_aligner = True
            continue
        if after_aligner:
            groups.append([])
            after_aligner = False
        if groups:
            groups[-1].append(kernel)
    return groups
