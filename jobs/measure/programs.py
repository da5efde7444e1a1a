"""The programs of one implementation, ready to run: a single call, and a chain of dependent calls."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

import cmkernel
from cmkernel import hardware, xla
from cmkernel.config import CONFIG_TYPES, to_plain
from jobs.config.implementations import LOCALS
from jobs.measure import jax_ring, torch_fused
from jobs.measure.inputs import AXIS, LHS_SPEC, OUT_SPEC, RHS_SPEC, LocalOperands, Operands
from jobs.records.row import BASELINE

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jobs.records.layout import Layout

# XLA multiplies by Triton or by cuBLAS, whichever it finds faster; these, by cuBLAS in any case.
_CUBLAS = {"xla_gpu_enable_triton_gemm": False}
_BY_CUBLAS = ("local_cublas", "xla_cublas")
Multiply = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Request:
    """What the driver asks every rank to measure."""

    requested: str
    """``kernel.implementation``, ``baseline``, or a round of the tuner's."""
    implementation: str
    """``auto``, or one of ``jobs.config.implementations.IMPLEMENTATIONS``."""
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options of its config that the user or the tuner set."""
    table: cmkernel.Table | None = None
    """Tuned configs to choose from where none is set; ``None``: those that ship with cmkernel."""
    label: str | None = None
    """Name of its programs where several requests are of one implementation."""

    @property
    def is_baseline(self) -> bool:
        """Whether it stands beside what the config asks for."""
        return self.requested == BASELINE

    @property
    def is_optional(self) -> bool:
        """Whether the job goes on without it, where it can't run: a baseline, or one candidate of many."""
        return self.is_baseline or self.label is not None


@dataclasses.dataclass(frozen=True)
class Opened:
    """What a request turned into on this rank."""

    implementation: str
    """What really runs."""
    reason: str
    """Why this one; of a baseline that can't run here, why not."""
    config: dict[str, Any] | None
    runs: bool = True


@dataclasses.dataclass(frozen=True)
class Programs:
    """One implementation, ready to run. Both programs take the operands that the implementation works on.

    Arrays are jax's, global ones but for the local multiplies; with ``torch_fused`` they are tensors, and results have
    ``block_until_ready``.
    """

    opened: Opened
    call: Callable[[Any, Any], Any]
    chain: Callable[[Sequence[Any], Sequence[Any]], Any]
    torch: torch_fused.Group | None = None
    """What runs the programs of ``torch_fused``."""

    def arguments(self, shared: Operands, local: LocalOperands) -> tuple[Any, Any]:
        """The operands in the form that the implementation takes."""
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
        """Whether the operands are ``LocalOperands``."""
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
    """The programs of ``request``; raises what ``cmkernel.all_gather_matmul`` raises, before anything is compiled.

    ``layout`` is how the mesh lies on hosts (``None``: not known). ``group`` is what ``torch_fused`` runs in; all ranks
    must build it together, as it is tried out.
    """
    if request.implementation == torch_fused.NAME:
        if group is None:
            raise NotImplementedError("the ranks are no process group of torch")
        chain, about = torch_fused.build(group, *example, chain_length=chain_length)
        return Programs(Opened(torch_fused.NAME, "named", about), group.call, chain, group)
    options = _compiler_options(request.implementation)
    open_it = _OPENERS.get(request.implementation, functools.partial(_open_cmkernel, layout=layout))
    opened, multiply = open_it(request, mesh, example)
    functions: tuple[Callable[..., jax.Array], ...] = multiply, _chain(multiply, chain_length)
    if request.implementation not in LOCALS:
        functions = tuple(_over_ranks(function, mesh) for function in functions)
    call, chain_of_calls = (jax.jit(function, compiler_options=options) for function in functions)
    return Programs(opened, call, chain_of_calls)


def _compiler_options(implementation: str) -> dict[str, Any] | None:
    if implementation not in _BY_CUBLAS:
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

    # Tracing alone runs every validation and tells what `auto` takes.
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
