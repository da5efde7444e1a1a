"""Public entry point: choose an implementation, make it differentiable and handle a batch dimension."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from cmkernel import gradient, mosaic_gpu, mosaic_gpu_simple, ppermute, xla
from cmkernel.choice import AxisName, Choice, Implementation, choose_implementation, find_hosts
from cmkernel.config import Config
from cmkernel.cost import Links
from cmkernel.ring import TwoLevelRing
from cmkernel.tuned import Table

if TYPE_CHECKING:
    from jaxtyping import Array, Float

# Each ring without and with the received shards as a second result.
_RINGS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mosaic_gpu": (mosaic_gpu.ring_all_gather_matmul, mosaic_gpu.ring_all_gather_matmul_with_received),
    "mosaic_gpu_simple": (
        mosaic_gpu_simple.ring_all_gather_matmul,
        mosaic_gpu_simple.ring_all_gather_matmul_with_received,
    ),
    "ppermute": (ppermute.ring_all_gather_matmul, ppermute.ring_all_gather_matmul_with_received),
    "ppermute_two_level": (ppermute.two_level_all_gather_matmul, ppermute.two_level_all_gather_matmul_with_received),
}


def all_gather_matmul(
    lhs: Float[Array, "*batch m_shard k"],
    rhs: Float[Array, "k n_shard"],
    *,
    axis_name: AxisName,
    implementation: Implementation = "auto",
    config: Config | None = None,
    table: Table | None = None,
    devices_per_host: int | None = None,
    links: Links | None = None,
    out_dtype: jax.typing.DTypeLike | None = None,
    save_gathered_lhs: bool = False,
) -> Float[Array, "*batch m n_shard"]:
    """Compute ``all_gather(lhs, axis=-2) @ rhs`` over mesh axis ``axis_name``, inside ``jax.shard_map``.

    Per rank: lhs ``[m_shard, k]``, rhs ``[k, n_shard]``, both f16, bf16 or f32 (not f32 with the ``mosaic_gpu``
    kernels); result ``[axis_size * m_shard, n_shard]`` in ``out_dtype``, accumulated in float32 and rounded once. Rank
    ``i`` contributes rows ``[i * m_shard, (i + 1) * m_shard)``. ``jax.shard_map`` needs ``check_vma=False``.

    With a batch, lhs ``[batch, m_shard, k]`` gives ``[batch, axis_size * m_shard, n_shard]``, with the same row order
    in each element. The batch runs as one multiply of ``batch * m_shard`` rows. That multiply returns its result rank
    by rank, so a batch above 1 costs one copy of the result, and one copy of its cotangent in the backward pass.

    Differentiable in reverse mode. All implementations share one backward pass (``cmkernel.gradient``): ``d_lhs`` is a
    matmul and a reduce-scatter in float32, ``d_rhs`` a matmul with the gathered lhs. ``jax.jvp`` raises. With the
    ``mosaic_gpu`` kernels, ``jax.vmap`` and second derivatives raise too.

    Args:
      lhs: This rank's rows of the left operand.
      rhs: This rank's columns of the right operand.
      axis_name: Mesh axis that the rows of lhs are sharded over, or two axes, (host axis, device axis), of which
        the second one holds the ranks of a host. The ``mosaic_gpu`` kernels need a single axis over all devices.
      implementation: ``mosaic_gpu`` (one Pallas kernel, Hopper), ``mosaic_gpu_simple`` (its readable form),
        ``ppermute`` (portable ring), ``ppermute_two_level`` (portable ring over hosts: ``cmkernel.ring.TwoLevelRing``)
        and ``xla`` (all-gather, then matmul) run exactly that or raise. ``auto`` chooses what the cost model expects
        to be fastest, and logs why. If ``mosaic_gpu`` can run, it chooses that or a faster one (``xla`` for few rows),
        otherwise one of the portable rings. With a ``config`` it chooses ``mosaic_gpu`` whenever that can run.
      config: ``KernelConfig`` for ``mosaic_gpu``, ``SimpleKernelConfig`` for ``mosaic_gpu_simple``, ``PpermuteConfig``
        for ``ppermute``. By default chosen from the shape: ``cmkernel.tuned``.
      table: Tuned configs to choose from, by default those shipped with this package. Must be the same on every rank.
      devices_per_host: Ranks per host, for a single axis that runs host by host. A host is what NVLink joins, so
        ``mosaic_gpu`` runs on one host only. ``None``: unknown; ``auto`` then uses the flat ring.
      links: Bandwidths that ``auto`` uses to choose between the portable rings, by default ``cost.default_links``.
      out_dtype: Dtype of the result: the operands' (the default) or float32 (not with ``mosaic_gpu_simple``).
      save_gathered_lhs: Keep the gathered lhs for the backward pass instead of gathering it again. ``False`` (the
        default) keeps only this rank's lhs and costs one more all-gather, which may overlap with the multiply for
        ``d_lhs``. ``True`` needs ``axis_size`` times the memory. Keeping it costs no extra communication: ``xla``
        already has it, and the rings copy it once from the shards they received. Under ``jax.checkpoint`` the kept
        array comes from the repeated forward pass and lives only until the end of that layer's backward pass, so
        ``True`` is cheap there.

    Raises:
      ValueError: The operands or ``config`` break a rule. The message names the value and the rule.
      NotImplementedError: ``implementation`` can't run here, on these dtypes or on this mesh. jax raises it at lowering
        when a ``mosaic_gpu`` kernel, named or chosen by ``auto``, runs over a mesh whose devices aren't in the order of
        their ids.
    """
    choice = choose_implementation(
        lhs,
        rhs,
        axis_name=axis_name,
        implementation=implementation,
        config=config,
        table=table,
        devices_per_host=devices_per_host,
        links=links,
        out_dtype=out_dtype,
    )
    multiply, multiply_and_gather = _passes(
        choice, axis_name, find_hosts(axis_name, devices_per_host), lhs.dtype if out_dtype is None else out_dtype
    )
    product = gradient.differentiable(
        multiply, multiply_and_gather, axis_name=axis_name, save_gathered_lhs=save_gathered_lhs
    )
    *batch, m_shard, k = lhs.shape
    out = product(lhs.reshape(-1, k), rhs)
    # [axis_size, *batch, m_shard, n_shard] -> [*batch, axis_size, m_shard, n_shard]
    by_rank = out.reshape(-1, *batch, m_shard, rhs.shape[1])
    return jnp.moveaxis(by_rank, 0, -3).reshape(*batch, -1, rhs.shape[1])


def _passes(
    choice: Choice, axis_name: AxisName, hosts: TwoLevelRing | None, out_dtype: jax.typing.DTypeLike
) -> tuple[gradient.Multiply, gradient.MultiplyAndGather]:
    """Return the forward pass of ``choice`` without and with the gathered lhs as a second result."""
    options: dict[str, Any] = {"axis_name": axis_name}
    if choice.implementation != "mosaic_gpu_simple":
        options["out_dtype"] = out_dtype
    if choice.implementation == "xla":
        return (
            functools.partial(xla.all_gather_then_dot, **options),
            functools.partial(xla.all_gather_then_dot_with_lhs, **options),
        )
    if choice.config is not None:
        options["config"] = choice.config
    # ``in_rank_order`` needs the ranks per host as well: it fixes the order of the received shards.
    per_host: dict[str, int] = {}
    if choice.implementation == "ppermute_two_level":
        assert hosts is not None
        per_host["devices_per_host"] = hosts.devices_per_host
    ring, ring_with_received = _RINGS[choice.implementation]

    def multiply(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return ring(lhs, rhs, **options, **per_host)

    def multiply_and_gather(lhs: jax.Array, rhs: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, received = ring_with_received(lhs, rhs, **options, **per_host)
        return out, gradient.in_rank_order(lhs, received, axis_name=axis_name, **per_host)

    if choice.implementation not in ("mosaic_gpu", "mosaic_gpu_simple"):
        return multiply, multiply_and_gather
    return _called_only(multiply), _called_only(multiply_and_gather)


def _called_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``function`` so that jax transforms of its kernel raise.

    ``jax.vmap`` can't work: the kernel counts arrivals once per call, not per batch element. Differentiating a gradient
    again would differentiate the kernel itself.
    """
    not_batched = jax.custom_batching.custom_vmap(function)

    @not_batched.def_vmap
    def _refuse(axis_size: int, *_: Any) -> Any:
        raise NotImplementedError(
            f"jax.vmap of {axis_size=} over the kernel isn't supported; pass lhs as [batch, m_shard, k], or use "
            'implementation="ppermute"'
        )

    not_differentiated = jax.custom_jvp(not_batched)

    @not_differentiated.defjvp
    def _refuse_again(*_: Any) -> Any:
        raise NotImplementedError(
            'a gradient of the kernel can\'t be differentiated again; use implementation="ppermute"'
        )

    return not_differentiated
