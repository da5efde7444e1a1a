"""The two programs of an implementation: a single call, and a chain of dependent calls."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

import cmkernel
from jobs.config.implementations import IMPLEMENTATIONS, LOCALS, refusal
from jobs.measure import jax_ring, torch_fused
from jobs.measure.chain import Chain, Function, chain_of, sharded_chain_of
from jobs.measure.functions import Cmkernel, JaxRing
from jobs.measure.operations import OPERATIONS, Operation
from jobs.measure.operations.operation import Shards
from jobs.measure.sharded import SHARDED, WINDOWED, WINDOWED_OPTIONS, contains_windowed_einsum, sharded
from jobs.records.row import BASELINE

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jobs.records.case import Case
    from jobs.records.layout import Layout

# XLA multiplies with Triton or cuBLAS, whichever it measures as faster; these implementations always use cuBLAS.
_CUBLAS = {"xla_gpu_enable_triton_gemm": False}
# Those that add partial sums in float32 and in one place. Others may round every sum of them.
_ROUNDS_ONCE = ("mosaic_gpu", "ppermute")


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
    """Implementation that runs; never ``auto``. A layer whose two halves differ joins their names by ``+``."""
    reason: str
    """Reason of the choice; with ``runs=False``, the reason why it can't run."""
    config: dict[str, Any] | None
    runs: bool = True


@dataclasses.dataclass(frozen=True)
class Programs:
    """One implementation, ready to run. Both programs take what ``arguments`` returns, and return a tuple of results.

    These are global jax arrays; local ones for the multiplies alone; tensors for ``torch_fused``.
    """

    opened: Opened
    operation: Operation
    call: Callable[..., Any]
    chain: Callable[[Sequence[tuple[Any, ...]]], Any]
    torch: torch_fused.Group | None = None
    """Process group of ``torch_fused``; ``None`` for the others."""
    rounds_once: bool = False
    """True if every reduce-scatter adds its partial sums in float32."""

    def arguments(self, sets: Sequence[Shards], local_sets: Sequence[Shards]) -> list[tuple[Any, ...]]:
        """Operands of some calls, in the form that the implementation takes."""
        if self.is_local:
            return list(local_sets)
        return list(sets) if self.torch is None else [tuple(map(self.torch.take, operands)) for operands in sets]

    def draw(self, case: Case, mesh: Mesh, rank: int, seed: int, *, integers: bool = False) -> tuple[Any, ...]:
        """Fresh operands of one call, in the same form."""
        if self.is_local:
            return self.operation.alone(case, rank, seed, integers=integers)
        return self.arguments([self.operation.operands(case, mesh, rank, seed, integers=integers)], [])[0]

    def shards(self, result: Any) -> Shards:
        """This rank's part of the results."""
        if self.torch is not None:
            return (result.to_jax(),)
        return tuple(one if self.is_local else one.addressable_shards[0].data for one in result)

    def num_roundings(self, num_ranks: int) -> int:
        """Upper limit on the roundings of a sum to the type that travels, in a reduce-scatter."""
        return 1 if self.rounds_once else num_ranks

    @property
    def is_local(self) -> bool:
        """The operands are those of the multiply alone."""
        return self.opened.implementation in LOCALS


def build(
    request: Request,
    case: Case,
    mesh: Mesh,
    example: Shards,
    *,
    chain_length: int,
    layout: Layout | None = None,
    group: torch_fused.Group | None = None,
) -> Programs:
    """Build the programs of ``request`` without compiling them, except for ``torch_fused`` and ``xla_windowed``.

    Args:
      request: implementation and config.
      case: problem.
      mesh: all ranks.
      example: operands that give the shapes and dtypes.
      chain_length: calls in the chain.
      layout: ranks on each host; ``None`` if unknown.
      group: process group of ``torch_fused``. All ranks must build it at the same time, as it runs once.

    Raises:
      ValueError: as ``cmkernel``'s two functions.
      NotImplementedError: as they do, or the implementation lacks the operation.
    """
    name, operation = request.implementation, OPERATIONS[case.op]
    if (reason := refusal(name, case.op)) is not None:
        raise NotImplementedError(reason)
    if name == torch_fused.NAME:
        if group is None:
            raise NotImplementedError("the ranks have no process group of torch")
        if case.partial_dtype is not None:
            raise NotImplementedError(f"torch sends partial sums of the operands' type, not {case.partial_dtype}")
        multiplies, config = torch_fused.build(group, case.op, *example, chain_length=chain_length)
        return Programs(Opened(name, "named", config), operation, multiplies.call, multiplies.chain, group)
    options = _compiler_options(name)
    if name in LOCALS:
        opened, call = Opened(name, "named", None), operation.run_alone
        chain = chain_of(call, chain_length)
    elif name in SHARDED:
        call = sharded(operation, case, mesh)
        chain = sharded_chain_of(call, chain_length, operation, mesh)
        is_windowed = name == WINDOWED and contains_windowed_einsum(call, example, options)
        opened = Opened(name, "named", {"windowed_einsum": is_windowed} if name == WINDOWED else None)
    else:
        opened, call, chain = _over_ranks(request, case, mesh, example, chain_length, layout)
    jitted = functools.partial(jax.jit, compiler_options=options)
    # In a layer, ``auto`` chooses again for the backward pass, and may take ``xla`` there.
    rounds_once = opened.implementation in _ROUNDS_ONCE and not (name == "auto" and case.op.is_layer)
    return Programs(opened, operation, jitted(call), jitted(chain), rounds_once=rounds_once)


def _compiler_options(implementation: str) -> dict[str, Any]:
    needs = IMPLEMENTATIONS.get(implementation)  # auto has no entry
    if needs is None or not (needs.by_cublas or implementation == WINDOWED):
        return {}
    if (platform := jax.devices()[0].platform) != "gpu":
        raise NotImplementedError(f"{implementation} needs a GPU: {platform=} must be 'gpu'")
    return _CUBLAS if needs.by_cublas else WINDOWED_OPTIONS


def _over_ranks(
    request: Request, case: Case, mesh: Mesh, example: Shards, chain_length: int, layout: Layout | None
) -> tuple[Opened, Function, Chain]:
    """Call and chain of one implementation inside ``jax.shard_map``."""
    operation, name = OPERATIONS[case.op], request.implementation
    ring: Cmkernel | JaxRing
    if name == jax_ring.NAME:
        ring = JaxRing()
    else:
        in_cmkernel = "xla" if name == "xla_cublas" else name
        ring = Cmkernel(case, in_cmkernel, request.config, request.table, layout)

    def function(*operands: jax.Array) -> Shards:
        return operation.run(ring.functions, *operands)

    def mapped(inner: Callable[..., Shards], in_specs: Any) -> Callable[..., Shards]:
        return jax.shard_map(inner, mesh=mesh, in_specs=in_specs, out_specs=operation.out_specs, check_vma=False)

    call = mapped(function, operation.in_specs)
    # Tracing runs every validation and resolves `auto`.
    jax.eval_shape(call, *example)
    implementation = name if name == "xla_cublas" else ring.implementation
    return (
        Opened(implementation, ring.reason, ring.config),
        call,
        # One spec for every set of the sequence.
        lambda sets: mapped(chain_of(function, chain_length), ([operation.in_specs] * len(sets),))(list(sets)),
    )
