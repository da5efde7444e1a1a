"""The compiled programs of one implementation: a single call, and a chain of dependent calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

import cmkernel
from cmkernel import xla
from cmkernel.config import CONFIG_TYPES
from jobs.measure.inputs import AXIS, LHS_SPEC, OUT_SPEC, RHS_SPEC, LocalOperands, Operands

if TYPE_CHECKING:
    from jax.sharding import Mesh

LOCAL = "local"
Multiply = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Request:
    """What the driver asks every rank to measure."""

    requested: str
    """``kernel.implementation``, or ``baseline``."""
    implementation: str
    """``auto``, ``mosaic_gpu``, ``mosaic_gpu_simple``, ``ppermute``, ``xla`` or ``local``."""
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Tile options that the user set."""


@dataclasses.dataclass(frozen=True)
class Opened:
    """What a request turned into on this rank."""

    implementation: str
    """What really runs."""
    reason: str
    config: dict[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Programs:
    """One implementation, ready to run. Both programs take the operands that the implementation works on."""

    opened: Opened
    call: Callable[[jax.Array, jax.Array], jax.Array]
    chain: Callable[[Sequence[jax.Array], Sequence[jax.Array]], jax.Array]

    @property
    def is_local(self) -> bool:
        """Whether the operands are ``LocalOperands``."""
        return self.opened.implementation == LOCAL


def build(request: Request, mesh: Mesh, example: Operands, *, chain_length: int) -> Programs:
    """The programs of ``request``; raises what ``cmkernel.all_gather_matmul`` raises, before anything is compiled."""
    if request.implementation == LOCAL:
        opened = Opened(LOCAL, "named", None)
        return Programs(opened, jax.jit(xla.local), jax.jit(_chain(xla.local, chain_length)))
    config = None
    if request.config:
        config = CONFIG_TYPES["mosaic_gpu" if request.implementation == "auto" else request.implementation](
            **request.config
        )
    choices: list[cmkernel.Choice] = []

    def choose(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        arguments: dict[str, Any] = {"axis_name": AXIS, "implementation": request.implementation, "config": config}
        choices.append(cmkernel.choose_implementation(lhs, rhs, **arguments))
        return cmkernel.all_gather_matmul(lhs, rhs, **arguments)

    # Tracing alone runs every validation and tells what `auto` takes.
    jax.eval_shape(_over_ranks(choose, mesh, (LHS_SPEC, RHS_SPEC)), *example)
    choice = choices[0]

    def multiply(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return cmkernel.all_gather_matmul(
            lhs, rhs, axis_name=AXIS, implementation=choice.implementation, config=choice.config
        )

    return Programs(
        Opened(choice.implementation, choice.reason, _plain(choice.config)),
        jax.jit(_over_ranks(multiply, mesh, (LHS_SPEC, RHS_SPEC))),
        jax.jit(_over_ranks(_chain(multiply, chain_length), mesh, (LHS_SPEC, RHS_SPEC))),
    )


def _over_ranks(function: Callable[..., jax.Array], mesh: Mesh, in_specs: Any) -> Callable[..., jax.Array]:
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=OUT_SPEC, check_vma=False)


def _chain(multiply: Multiply, length: int) -> Callable[[Sequence[jax.Array], Sequence[jax.Array]], jax.Array]:
    """``length`` calls in one program, each depending on the one before it, over rotating operands."""
    # Traced and lowered once, not `length` times: each time takes about a second for a Pallas kernel.
    multiply = jax.jit(multiply)

    def chain(lhs_sets: Sequence[jax.Array], rhs_sets: Sequence[jax.Array]) -> jax.Array:
        lhs_sets, rhs_sets = list(lhs_sets), list(rhs_sets)
        out = multiply(lhs_sets[0], rhs_sets[0])
        for i in range(1, length):
            turn = i % len(lhs_sets)
            lhs_sets[turn] = _depend(lhs_sets[turn], out)
            out = multiply(lhs_sets[turn], rhs_sets[turn])
        return out

    return chain


def _depend(lhs: jax.Array, out: jax.Array) -> jax.Array:
    """``lhs``, unchanged, but not before ``out`` is there.

    A few elements of ``out`` times zero are added: the compiler must keep that, as they could be NaN. It is done in
    place, after one copy of each set: the program doesn't own its arguments. An optimization barrier wouldn't do: it is
    gone before collectives are scheduled.
    """
    width = min(8, lhs.shape[1], out.shape[1])
    return lhs.at[:1, :width].add(out[:1, :width] * 0)


def _plain(config: cmkernel.KernelConfig | cmkernel.SimpleKernelConfig | None) -> dict[str, Any] | None:
    if config is None:
        return None
    values = dataclasses.asdict(config)
    return {
        name: value.name if isinstance(value, cmkernel.MatmulDimension) else value for name, value in values.items()
    }


def arguments(programs: Programs, shared: Operands, local: LocalOperands) -> tuple[jax.Array, jax.Array]:
    """The operands in the form that the implementation takes."""
    return tuple(local) if programs.is_local else tuple(shared)  # type: ignore[return-value]
