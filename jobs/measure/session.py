"""A rank's side of the measurement: what the driver asks of every rank, step by step, in the same order.

The driver calls one method on all ranks and waits for all of them before the next, so every rank makes the same
collective calls in the same order. Nothing here decides by itself what to run.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from cmkernel import hardware
from jobs.config.choices import Fault
from jobs.config.schema import TimingSettings
from jobs.measure import inputs, programs, ring_stamps, timing, torch_fused
from jobs.measure.check import Subject, check
from jobs.measure.profile import Profile, profile
from jobs.measure.programs import Opened, Programs, Request
from jobs.measure.pulse import PULSE
from jobs.measure.ring_stamps import RING, RingStamps
from jobs.measure.soak import soak
from jobs.measure.telemetry import Sampler, nvlink_name
from jobs.records.case import Case
from jobs.records.check import RankCheck
from jobs.records.layout import Layout
from jobs.records.row import Telemetry
from jobs.records.soak import RankSlice

logger = logging.getLogger(__name__)

# Twice the largest L2 among the supported GPUs (60 MB on the H200): operands that come round again must have left it.
ROTATION_BYTES = 2 * 60 * 2**20
MAX_SETS = 16
# Rows of the square multiply that keeps a GPU busy for over a millisecond, while the timed call is enqueued behind it.
ALIGN_SIZE = 8192


@dataclasses.dataclass
class _OpenCase:
    case: Case
    programs: dict[str, Programs]
    sets: list[inputs.Operands]
    local_sets: list[inputs.LocalOperands]

    def arguments(self, implementation: str) -> list[tuple[Any, Any]]:
        program = self.programs[implementation]
        return [program.arguments(shared, local) for shared, local in zip(self.sets, self.local_sets, strict=True)]


class Session:
    """All ranks as one mesh, and the case that is being measured."""

    def __init__(self) -> None:
        self.rank = jax.process_index()
        self.mesh = jax.make_mesh(
            (jax.device_count(),), (inputs.AXIS,), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()
        )
        self.on_gpu = jax.devices()[0].platform == "gpu"
        self._open: _OpenCase | None = None
        self._group = torch_fused.Group(self.rank, jax.process_count())
        self._sampler: Sampler | None = None
        self._align = self._make_align(1)
        self._align_busy = self._make_align(ALIGN_SIZE if self.on_gpu else 1)
        self._aligned = self._align_busy[1]

    def num_sms(self) -> int | None:
        """Streaming multiprocessors of this rank's GPU; ``None`` on CPUs."""
        return hardware.num_sms() if self.on_gpu else None

    def links(self) -> str:
        """What the ranks talk over."""
        return nvlink_name() if self.on_gpu else "gloo"

    def get_torch_ready(self, host: str) -> torch_fused.Readiness:
        """Whether this rank can join a process group of torch, whose rank 0 will be found at the address ``host``."""
        return self._group.get_ready(host)

    def join_torch(self, host: str, port: int) -> str | None:
        """Join it; why that failed, or ``None``."""
        return self._group.join(host, port)

    def open_case(
        self, case: Case, requests: list[Request], layout: Layout, settings: TimingSettings, seed: int
    ) -> list[Opened]:
        """Draw the operands and build the programs; nothing of jax's is compiled yet.

        A baseline or candidate that can't run on the case is no error: it says why. From then on the programs go by
        the request's label or, without one, by the implementation.
        """
        set_bytes = (case.m_shard + case.n_shard) * case.k * jnp.dtype(case.dtype).itemsize
        num_sets = min(MAX_SETS, max(2, math.ceil(ROTATION_BYTES / set_bytes))) if self.on_gpu else 2
        self.close_case()
        example = inputs.operands(case, self.mesh, self.rank, seed)
        opened: list[Opened] = []
        built: dict[str, Programs] = {}
        for request in requests:
            try:
                program = programs.build(
                    request,
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
            [inputs.operands(case, self.mesh, self.rank, seed + i) for i in range(num_sets)],
            [inputs.local_operands(case, self.rank, seed + i) for i in range(num_sets)],
        )
        return opened

    def try_chain(self, name: str) -> str | None:
        """Compile and run the chain of a candidate; why that failed, or ``None``."""
        try:
            self.warm_up(name, 0)
        except Exception as error:
            return torch_fused.told(error)
        return None

    def check(self, implementation: str, calls: int, seed: int, fault: Fault, chain_length: int) -> RankCheck:
        """Compare the results of both programs with the oracle."""
        case = self._opened()
        subject = Subject(case.programs[implementation], case.case, self.mesh, self.rank, fault)
        return check(subject, calls=calls, num_sets=len(case.sets), chain_length=chain_length, seed=seed)

    def soak(
        self, implementation: str, iterations: int, seed: int, fault: Fault, fault_from: int, compiles: bool
    ) -> RankSlice:
        """So many calls with fresh data, each one checked and, but for those that compile, timed."""
        case = self._opened()
        subject = Subject(case.programs[implementation], case.case, self.mesh, self.rank, fault)
        return soak(
            subject,
            iterations=iterations,
            seed=seed,
            fault_from=fault_from,
            compiles=compiles,
            align=self._align_ranks,
        )

    def warm_up(self, implementation: str, calls: int) -> None:
        """Run both programs, which the check has compiled; with ``calls=0`` the chain alone."""
        case = self._opened()
        program, sets = case.programs[implementation], case.arguments(implementation)
        lhs_sets, rhs_sets = zip(*sets, strict=True)
        for i in range(calls):
            program.call(*sets[i % len(sets)]).block_until_ready()
            PULSE.beat()
        program.chain(lhs_sets, rhs_sets).block_until_ready()

    def start_sampling(self) -> None:
        """Begin to record clock, power and throttling of this rank's GPU."""
        self._sampler = Sampler.start() if self.on_gpu else None

    def stop_sampling(self) -> Telemetry | None:
        """What was recorded since ``start_sampling``; ``None`` on CPUs."""
        sampler, self._sampler = self._sampler, None
        return sampler.stop(self.rank) if sampler else None

    def burst(self, implementation: str, burst: int, settings: TimingSettings) -> dict[str, list[float]]:
        """Samples of ``call_us`` and ``in_graph_us``: this burst's share of them."""
        case = self._opened()
        program, sets = case.programs[implementation], case.arguments(implementation)
        calls = timing.share(settings.iterations, burst, settings.bursts)
        chains = timing.share(settings.chains, burst, settings.bursts)
        return {
            "call_us": timing.time_calls(program.call, sets, which=calls, align=self._align_ranks),
            "in_graph_us": timing.time_chains(
                program.chain,
                sets,
                count=len(chains),
                calls_per_sample=settings.chain_length * settings.chain_repeats,
                repeats=settings.chain_repeats,
                align=self._align_ranks,
            ),
        }

    def profile(self, implementations: list[str], calls: int) -> dict[str, Profile]:
        """``kernel_us`` and ``device_us`` of some calls of each implementation, in turn; nothing on CPUs.

        torch has a trace of its own: should it lack the order that the others' calls are told apart by, they stay.
        """
        if not self.on_gpu:
            return {}
        found = self._trace([name for name in implementations if name != torch_fused.NAME], calls)
        try:
            by_torch = self._trace([name for name in implementations if name == torch_fused.NAME], calls)
        except RuntimeError as error:
            logger.warning("no device times of %s: %s", torch_fused.NAME, error)
            by_torch = {}
        return found | {name: traced.as_span() for name, traced in by_torch.items()}

    def _trace(self, implementations: list[str], calls: int) -> dict[str, Profile]:
        if not implementations:
            return {}
        case = self._opened()
        turns = [(self._behind_aligner(case.programs[name]), case.arguments(name)) for name in implementations]
        profiles = profile(turns, count=calls, align_on_device=self._align_on_device)
        return dict(zip(implementations, profiles, strict=True)) if profiles is not None else {}

    def _behind_aligner(self, program: Programs) -> Callable[[Any, Any], Any]:
        """Its call, which the device starts when the aligner has ended."""
        group = program.torch
        if group is None:
            return program.call

        def call(lhs: Any, rhs: Any) -> Any:
            group.follow(self._aligned)
            return program.call(lhs, rhs)

        return call

    def stamp(self) -> RingStamps | str:
        """When the CTAs of ``mosaic_gpu`` did what in one call; why that failed, as what was measured is worth more."""
        try:
            case = self._opened()
            stamped = ring_stamps.build(case.programs[RING].opened.config or {}, self.mesh, case.case)
            for operands in case.arguments(RING)[:2]:
                # The first call loads the kernel.
                self._align_ranks()
                stamps = stamped(*operands)
        except Exception as error:
            return torch_fused.told(error)
        return stamps

    def close_case(self) -> None:
        """Drop operands and executables: each one with symmetric memory keeps a window over XLA's arena open."""
        if self._open is not None:
            PULSE.finished_case = str(self._open.case)
        self._open = None
        jax.clear_caches()

    def _opened(self) -> _OpenCase:
        if self._open is None:
            raise RuntimeError("no case is open")
        return self._open

    def _make_align(self, size: int) -> tuple[jax.stages.Compiled, jax.Array]:
        """A program that ends on all ranks at once, after a multiply of ``size`` rows."""
        spec = PartitionSpec(inputs.AXIS, None)

        def cmkernel_align(x: jax.Array) -> jax.Array:
            return jax.lax.psum((x @ x)[:1, :1], inputs.AXIS)

        function = jax.shard_map(
            cmkernel_align, mesh=self.mesh, in_specs=spec, out_specs=PartitionSpec(None, None), check_vma=False
        )
        sharding = jax.sharding.NamedSharding(self.mesh, spec)
        shape = (size * jax.device_count(), size)
        x = jax.make_array_from_callback(shape, sharding, lambda _: jnp.ones((size, size), jnp.bfloat16))
        return jax.jit(function).lower(x).compile(), x

    def _align_ranks(self) -> None:
        program, x = self._align
        program(x).block_until_ready()
        PULSE.beat()

    def _align_on_device(self) -> str:
        program, x = self._align_busy
        self._aligned = program(x)
        PULSE.beat()
        return "jit_cmkernel_align"
