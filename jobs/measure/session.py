"""The measurement on one rank: the steps that the driver calls.

The driver calls one method on all ranks and waits for all of them before the next, so that every rank makes the same
collective calls in the same order. Nothing here chooses what to run.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from cmkernel import hardware
from jobs.config.choices import Fault
from jobs.config.schema import TimingSettings
from jobs.measure import inputs, programs, ring_stamps, timing, torch_fused
from jobs.measure.aligner import Aligner
from jobs.measure.check import Subject, check
from jobs.measure.operations import OPERATIONS
from jobs.measure.operations.operation import Shards
from jobs.measure.profile import Profile, profile
from jobs.measure.programs import Opened, Programs, Request
from jobs.measure.pulse import PULSE
from jobs.measure.reason import reason_of
from jobs.measure.ring_stamps import RING, RingStamps
from jobs.measure.soak import soak
from jobs.measure.telemetry import Sampler, nvlink_name
from jobs.records.case import Case
from jobs.records.check import RankCheck
from jobs.records.layout import Layout
from jobs.records.row import Telemetry
from jobs.records.soak import RankSlice

logger = logging.getLogger(__name__)

# Twice the largest L2 cache of the supported GPUs (60 MB on the H200): an operand set has left it before its next turn.
ROTATION_BYTES = 2 * 60 * 2**20
MAX_SETS = 16


@dataclasses.dataclass
class _OpenCase:
    case: Case
    programs: dict[str, Programs]
    sets: list[Shards]
    local_sets: list[Shards]

    def arguments(self, implementation: str) -> list[tuple[Any, ...]]:
        return self.programs[implementation].arguments(self.sets, self.local_sets)


class Session:
    """All ranks as one mesh, and the open case."""

    def __init__(self) -> None:
        self.rank = jax.process_index()
        self.mesh = jax.make_mesh(
            (jax.device_count(),), (inputs.AXIS,), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()
        )
        self.on_gpu = jax.devices()[0].platform == "gpu"
        self._open: _OpenCase | None = None
        self._group = torch_fused.Group(self.rank, jax.process_count())
        self._sampler: Sampler | None = None
        self._aligner = Aligner(self.mesh, on_gpu=self.on_gpu)

    def num_sms(self) -> int | None:
        """Streaming multiprocessors of this rank's GPU; ``None`` on CPUs."""
        return hardware.num_sms() if self.on_gpu else None

    def links(self) -> str:
        """Interconnect between the ranks: NVLink as nvidia-smi names it, ``PCIe``, or ``gloo`` on CPUs."""
        return nvlink_name() if self.on_gpu else "gloo"

    def get_torch_ready(self, host: str) -> torch_fused.Readiness:
        """Prepare to join a process group of torch whose rank 0 listens at the address ``host``."""
        return self._group.get_ready(host)

    def join_torch(self, host: str, port: int) -> str | None:
        """Join the process group; return the reason of a failure, or ``None``."""
        return self._group.join(host, port)

    def open_case(
        self, case: Case, requests: list[Request], layout: Layout, settings: TimingSettings, seed: int
    ) -> list[Opened]:
        """Draw the operands and build the programs; jax compiles nothing yet.

        A baseline or candidate that can't run on the case returns its reason instead of raising. The other steps name
        a program by the request's label or, without one, by its implementation.
        """
        operation = OPERATIONS[case.op]
        set_bytes = sum(map(math.prod, operation.shapes(case))) * jnp.dtype(case.dtype).itemsize
        num_sets = min(MAX_SETS, max(2, math.ceil(ROTATION_BYTES / set_bytes))) if self.on_gpu else 2
        self.close_case()
        example = operation.operands(case, self.mesh, self.rank, seed)
        opened: list[Opened] = []
        built: dict[str, Programs] = {}
        for request in requests:
            try:
                program = programs.build(
                    request,
                    case,
                    self.mesh,
                    example,
                    chain_length=settings.chain_length,
                    layout=layout,
                    group=self._group,
                )
            except (NotImplementedError, ValueError) as error:
                if not request.is_optional:
                    raise
                opened.append(Opened(request.implementation, str(error), None, runs=False))
                continue
            opened.append(program.opened)
            built.setdefault(request.label or program.opened.implementation, program)
        self._open = _OpenCase(
            case,
            built,
            [operation.operands(case, self.mesh, self.rank, seed + i) for i in range(num_sets)],
            [operation.alone(case, self.rank, seed + i) for i in range(num_sets)],
        )
        return opened

    def try_chain(self, name: str) -> str | None:
        """Compile and run a candidate's chain; return the reason of a failure, or ``None``."""
        try:
            self.warm_up(name, 0)
        except Exception as error:
            return reason_of(error)
        return None

    def check(self, implementation: str, calls: int, seed: int, fault: Fault, chain_length: int) -> RankCheck:
        """Compare the results of both programs with the oracle."""
        case = self._opened()
        subject = Subject(case.programs[implementation], case.case, self.mesh, self.rank, fault)
        return check(subject, calls=calls, num_sets=len(case.sets), chain_length=chain_length, seed=seed)

    def soak(
        self, implementation: str, iterations: int, seed: int, fault: Fault, fault_from: int, compiles: bool
    ) -> RankSlice:
        """Check ``iterations`` calls with fresh data, and time those that don't compile."""
        case = self._opened()
        subject = Subject(case.programs[implementation], case.case, self.mesh, self.rank, fault)
        return soak(
            subject,
            iterations=iterations,
            seed=seed,
            fault_from=fault_from,
            compiles=compiles,
            align=self._aligner.align_hosts,
        )

    def warm_up(self, implementation: str, calls: int) -> None:
        """Run both programs, already compiled by the check; with ``calls=0`` only the chain."""
        case = self._opened()
        program, sets = case.programs[implementation], case.arguments(implementation)
        for i in range(calls):
            jax.block_until_ready(program.call(*sets[i % len(sets)]))
            PULSE.beat()
        jax.block_until_ready(program.chain(sets))

    def start_sampling(self) -> None:
        """Start recording clock, power and throttling of this rank's GPU."""
        self._sampler = Sampler.start() if self.on_gpu else None

    def stop_sampling(self) -> Telemetry | None:
        """Telemetry since ``start_sampling``; ``None`` on CPUs."""
        sampler, self._sampler = self._sampler, None
        return sampler.stop(self.rank) if sampler else None

    def burst(self, implementation: str, burst: int, settings: TimingSettings) -> dict[str, list[float]]:
        """This burst's samples of ``call_us`` and ``in_graph_us``."""
        case = self._opened()
        program, sets = case.programs[implementation], case.arguments(implementation)
        calls = timing.share(settings.iterations, burst, settings.bursts)
        chains = timing.share(settings.chains, burst, settings.bursts)
        return {
            "call_us": timing.time_calls(program.call, sets, which=calls, align=self._aligner.align_hosts),
            "in_graph_us": timing.time_chains(
                program.chain,
                sets,
                count=len(chains),
                calls_per_sample=settings.chain_length * settings.chain_repeats,
                repeats=settings.chain_repeats,
                align=self._aligner.align_hosts,
            ),
        }

    def profile(self, implementations: list[str], calls: int) -> dict[str, Profile]:
        """Profile ``calls`` calls of each implementation, in turn; empty on CPUs.

        torch is traced separately: if its calls can't be told apart in the trace, the others keep their times.
        """
        if not self.on_gpu:
            return {}
        profiles = self._trace([name for name in implementations if name != torch_fused.NAME], calls)
        try:
            by_torch = self._trace([name for name in implementations if name == torch_fused.NAME], calls)
        except RuntimeError as error:
            logger.warning("no device times of %s: %s", torch_fused.NAME, error)
            by_torch = {}
        return profiles | {name: traced.as_span() for name, traced in by_torch.items()}

    def _trace(self, implementations: list[str], calls: int) -> dict[str, Profile]:
        if not implementations:
            return {}
        case = self._opened()
        turns = [(self._behind_aligner(case.programs[name]), case.arguments(name)) for name in implementations]
        profiles = profile(turns, count=calls, align_on_device=self._aligner.align_devices)
        return dict(zip(implementations, profiles, strict=True)) if profiles is not None else {}

    def _behind_aligner(self, program: Programs) -> Callable[..., Any]:
        """The program's call, started by the device after the aligner."""
        group = program.torch
        if group is None:
            return program.call

        def call(*operands: Any) -> Any:
            group.follow(self._aligner.last)
            return program.call(*operands)

        return call

    def stamp(self) -> RingStamps | str:
        """Times inside one call of ``mosaic_gpu``, by CTA. A failure returns its reason and keeps the row."""
        try:
            case = self._opened()
            stamped = ring_stamps.build(case.programs[RING].opened.config or {}, self.mesh, case.case)
            for operands in case.arguments(RING)[:2]:
                # The first call loads the kernel.
                self._aligner.align_hosts()
                stamps = stamped(*operands)
        except Exception as error:
            return reason_of(error)
        return stamps

    def close_case(self) -> None:
        """Drop operands and executables: each executable with symmetric memory keeps a window over XLA's arena open."""
        if self._open is not None:
            PULSE.finished_case = str(self._open.case)
        self._open = None
        jax.clear_caches()

    def _opened(self) -> _OpenCase:
        if self._open is None:
            raise RuntimeError("no case is open")
        return self._open
