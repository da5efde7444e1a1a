"""A rank's side of the measurement: what the driver asks of every rank, step by step, in the same order.

The driver calls one method on all ranks and waits for all of them before the next, so every rank makes the same
collective calls in the same order. Nothing here decides by itself what to run.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jobs.measure import inputs, programs, timing
from jobs.measure.check import Subject, check
from jobs.measure.profile import Profile, profile
from jobs.measure.programs import Opened, Programs, Request
from jobs.measure.pulse import PULSE
from jobs.measure.telemetry import Sampler, nvlink_name
from jobs.records import Case, RankCheck, Telemetry
from jobs.settings import Fault, TimingSettings

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

    def arguments(self, implementation: str) -> list[tuple[jax.Array, jax.Array]]:
        program = self.programs[implementation]
        return [
            programs.arguments(program, shared, local) for shared, local in zip(self.sets, self.local_sets, strict=True)
        ]


class Session:
    """All ranks as one mesh, and the case that is being measured."""

    def __init__(self) -> None:
        self.rank = jax.process_index()
        self.mesh = jax.make_mesh(
            (jax.device_count(),), (inputs.AXIS,), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()
        )
        self.on_gpu = jax.devices()[0].platform == "gpu"
        self._open: _OpenCase | None = None
        self._sampler: Sampler | None = None
        self._align = self._make_align(1)
        self._align_busy = self._make_align(ALIGN_SIZE if self.on_gpu else 1)

    def links(self) -> str:
        """What the ranks talk over."""
        return nvlink_name() if self.on_gpu else "gloo"

    def open_case(self, case: Case, requests: list[Request], settings: TimingSettings, seed: int) -> list[Opened]:
        """Draw the operands and build the programs; nothing is compiled yet."""
        set_bytes = (case.m_shard + case.n_shard) * case.k * jnp.dtype(case.dtype).itemsize
        num_sets = min(MAX_SETS, max(2, math.ceil(ROTATION_BYTES / set_bytes))) if self.on_gpu else 2
        self.close_case()
        example = inputs.operands(case, self.mesh, self.rank, seed)
        built = [programs.build(r, self.mesh, example, chain_length=settings.chain_length) for r in requests]
        self._open = _OpenCase(
            case,
            {p.opened.implementation: p for p in reversed(built)},
            [inputs.operands(case, self.mesh, self.rank, seed + i) for i in range(num_sets)],
            [inputs.local_operands(case, self.rank, seed + i) for i in range(num_sets)],
        )
        return [p.opened for p in built]

    def check(self, implementation: str, calls: int, seed: int, fault: Fault, chain_length: int) -> RankCheck:
        """Compare the results of both programs with the oracle."""
        case = self._opened()
        subject = Subject(case.programs[implementation], case.case, self.mesh, self.rank, fault)
        return check(subject, calls=calls, num_sets=len(case.sets), chain_length=chain_length, seed=seed)

    def warm_up(self, implementation: str, calls: int) -> None:
        """Run both programs, which the check has compiled."""
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

    def profile(self, implementations: list[str], calls: int) -> list[Profile] | None:
        """``kernel_us`` and ``device_us`` of some calls of each implementation, in turn; ``None`` on CPUs."""
        if not self.on_gpu:
            return None
        case = self._opened()
        programs_and_sets = [(case.programs[name].call, case.arguments(name)) for name in implementations]
        return profile(programs_and_sets, count=calls, align_on_device=self._align_on_device)

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
        program(x)
        PULSE.beat()
        return "jit_cmkernel_align"
