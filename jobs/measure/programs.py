"""The two programs of an implementation: a single call, and a chain of dependent calls."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

import cmkernel
from cmkernel import hardware, xla
from cmkernel.config import CONFIG_TYPES, to_plain
from jobs.config.implementations import IMPLEMENTATIONS, LOCALS
from jobs.measure import jax_ring, torch_fused
from jobs.measure.inputs import AXIS, LHS_SPEC, OUT_SPEC, RHS_SPEC, LocalOperands, Operands
from jobs.records.row import BASELINE

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jobs.records.layout import Layout

# XLA multiplies with Triton or cuBLAS, whichever it measures as faster; these implementations always use cuBLAS.
_CUBLAS = {"xla_gpu_enable_triton_gemm": False}
Multiply = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Request:
    """An implementation that the driver asks every rank to measure."""

    requested: str
    """``kernel.implementation``, ``baseline``, or the name of a tuning round."""
    implementation: str
    """``auto``, or one of ``jobs.config.implementations.IMPLEMENTATIONS``."""
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Config options set by the user or the tuner."""
    table: cmkernel.Table | None = None
    """Tuned configs to choose from if no option is set; ``None`` takes the ones that ship with cmkernel."""
    label: str | None = None
    """Name of the programs, needed if several requests have one implementation."""

    @property
    def is_baseline(self) -> bool:
        """The request is a baseline, not ``kernel.implementation``."""
        return self.requested == BASELINE

    @property
    def is_optional(self) -> bool:
        """The job continues if it can't run: a baseline, or one of many candidates."""
        return self.is_baseline or self.label is not None


@dataclasses.dataclass(frozen=True)
class Opened:
    """The outcome of a request on this rank."""

    implementation: str
    """Implementation that runs; never ``auto``."""
    reason: str
    """Reason of the choice; with ``runs=False``, the reason why it can't run."""
    config: dict[str, Any] | None
    runs: bool = True


@dataclasses.dataclass(frozen=True)
class Programs:
    """One implementation, ready to run. Both programs take the result of ``arguments``.

    These are global jax arrays; local ones for the local multiplies; tensors for ``torch_fused``. All results have
    ``block_until_ready``.
    """

    opened: Opened
    call: Callable[[Any, Any], Any]
    chain: Callable[[Sequence[Any], Sequence[Any]], Any]
    torch: torch_fused.Group | None = None
    """Process group of ``torch_fused``; ``None`` for the others."""

    def arguments(self, shared: Operands, local: LocalOperands) -> tuple[Any, Any]:
        """Operands in the form that the implementation takes."""
        if self.torch is not None:
            return self.torch.take(shared.lhs), self.torch.take(shared.rhs)
        return (local.gathered_lhs, local.rhs) if self.is_local else (shared.lhs, shared.rhs)

    def shard(self, result: Any) -> jax.Array:
        """This rank's part of a result: ``[num_ranks * m_shard, n_shard]``."""
        if self.torch is not None:
            return result.to_jax()
        return result if self.is_local else result.addressable_shards[0].data

    @property
    def is_local(self) -> bool:
        """The operands are ``LocalOperands``."""
        return self.opened.implementation in LOCALS


def build(
    request: Request,
    mesh: Mesh,
    example: Operands,
    *,
    chain_length: int,
    layout: Layout | None = None,
    group: torch_fused.Group | None = None,
) -> Programs:
    """Build the programs of ``request`` without compiling them, except for ``torch_fused``.

    Args:
      request: implementation and config.
      mesh: all ranks.
      example: operands that give the shapes and dtypes.
      chain_length: calls in the chain.
      layout: ranks on each host; ``None`` if unknown.
      group: process group of ``torch_fused``. All ranks must build it at the same time, as it runs once.

    Raises:
      ValueError, NotImplementedError: as ``cmkernel.all_gather_matmul`` does.
    """
    if request.implementation == torch_fused.NAME:
        if group is None:
            raise NotImplementedError("the ranks have no process group of torch")
        chain, config = torch_fused.build(group, *example, chain_length=chain_length)
        return Programs(Opened(torch_fused.NAME, "named", config), group.call, chain, group)
    options = _compiler_options(request.implementation)
    open_it = _OPENERS.get(request.implementation, functools.partial(_open_cmkernel, layout=layout))
    opened, multiply = open_it(request, mesh, example)
    functions: tuple[Callable[..., jax.Array], ...] = multiply, _chain(multiply, chain_length)
    if request.implementation not in LOCALS:
        functions = tuple(_over_ranks(function, mesh) for function in functions)
    call, chain_of_calls = (jax.jit(function, compiler_options=options) for function in functions)
    return Programs(opened, call, chain_of_calls)


def _compiler_options(implementation: str) -> dict[str, Any] | None:
    needs = IMPLEMENTATIONS.get(implementation)  # auto has no entry
    if needs is None or not needs.by_cublas:
        return None
    if (platform := jax.devices()[0].platform) != "gpu":
        raise NotImplementedError(f"{implementation} needs a GPU: {platform=} must be 'gpu'")
    return _CUBLAS


def _open_cmkernel(
    request: Request, mesh: Mesh, example: Operands, *, layout: Layout | None = None
) -> tuple[Opened, Multiply]:
    config = None
    where: dict[str, Any] = {"axis_name": AXIS, "table": request.table}
    if layout is not None:
        where |= {"devices_per_host": layout.devices_per_host, "links": layout.links}
    if request.config:
        config = CONFIG_TYPES["mosaic_gpu" if request.implementation == "auto" else request.implementation](
            **request.config
        )
    choices: list[cmkernel.Choice] = []

    def choose(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        arguments = {**where, "implementation": request.implementation, "config": config}
        choices.append(cmkernel.choose_implementation(lhs, rhs, **arguments))
        return cmkernel.all_gather_matmul(lhs, rhs, **arguments)

    # Tracing runs every validation and resolves `auto`.
    jax.eval_shape(_over_ranks(choose, mesh), *example)
    choice = choices[0]

    def multiply(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return cmkernel.all_gather_matmul(lhs, rhs, **where, implementation=choice.implementation, config=choice.config)

    plain = None if choice.config is None else to_plain(choice.config)
    return Opened(choice.implementation, choice.reason, plain), multiply


def _open_jax_ring(request: Request, mesh: Mesh, example: Operands) -> tuple[Opened, Multiply]:
    configs: list[Any] = []

    def choose(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        if (reason := jax_ring.unsupported_reason(axis_name=AXIS, dtype=lhs.dtype)) is not None:
            raise NotImplementedError(f"{jax_ring.NAME} can't run here: {reason}")
        (m_shard, k), n_shard = lhs.shape, rhs.shape[1]
        configs.append(jax_ring.choose_config(m_shard=m_shard, k=k, n_shard=n_shard, num_sms=hardware.num_sms()))
        return jax_ring.all_gather_matmul(lhs, rhs, axis_name=AXIS, config=configs[-1])

    jax.eval_shape(_over_ranks(choose, mesh), *example)
    config = configs[0]
    multiply = functools.partial(jax_ring.all_gather_matmul, axis_name=AXIS, config=config)
    return Opened(jax_ring.NAME, "named", jax_ring.plain(config)), multiply


def _open_xla_cublas(request: Request, mesh: Mesh, example: Operands) -> tuple[Opened, Multiply]:
    _, multiply = _open_cmkernel(dataclasses.replace(request, implementation="xla"), mesh, example)
    return Opened(request.implementation, "named", None), multiply


def _open_local(request: Request, mesh: Mesh, example: Operands) -> tuple[Opened, Multiply]:
    del mesh, example
    return Opened(request.implementation, "named", None), xla.local


_OPENERS = {jax_ring.NAME: _open_jax_ring, "xla_cublas": _open_xla_cublas, **dict.fromkeys(LOCALS, _open_local)}


def _over_ranks(function: Callable[..., jax.Array], mesh: Mesh) -> Callable[..., jax.Array]:
    return jax.shard_map(function, mesh=mesh, in_specs=(LHS_SPEC, RHS_SPEC), out_specs=OUT_SPEC, check_vma=False)


def _chain(multiply: Multiply, length: int) -> Callable[[Sequence[jax.Array], Sequence[jax.Array]], jax.Array]:
    """One program of ``length`` calls over rotating operands; each call depends on the previous one."""
    # Trace and lower it once instead of `length` times: a Pallas kernel takes about a second each time.
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
    """Return ``lhs`` unchanged, but only once ``out`` is computed.

    It adds a few elements of ``out`` times zero, which the compiler must keep because they could be NaN. This happens
    in place after one copy of each set, as the program doesn't own its arguments. An optimization barrier isn't enough:
    XLA removes it before it schedules collectives.
    """
    width = min(8, lhs.shape[1], out.shape[1])
    return lhs.at[:1, :width].add(out[:1, :width] * 0)
