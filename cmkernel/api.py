"""The public function: an implementation chosen, its passes made differentiable, a batch laid out."""

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

# Each ring, and the same with the shards that it received as a second result.
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
    """``all_gather(lhs, axis=-2) @ rhs`` over mesh axis ``axis_name``, for use inside ``jax.shard_map``.

    Per rank: lhs ``[m_shard, k]``, rhs ``[k, n_shard]``, both f16, bf16 or f32 (f32 not with the ``mosaic_gpu``
    kernels); result ``[axis_size * m_shard, n_shard]`` in ``out_dtype``, accumulated in float32 and rounded once. Rows
    ``[i * m_shard, (i + 1) * m_shard)`` come from rank ``i``. ``jax.shard_map`` needs ``check_vma=False``.

    With a batch, lhs ``[batch, m_shard, k]`` gives ``[batch, axis_size * m_shard, n_shard]``, with the same order of
    rows in each element. It is one multiply of ``batch * m_shard`` rows. Its result comes out rank by rank, so a batch
    above 1 costs one copy of the result, and one of its cotangent in the backward pass.

    Differentiable in reverse mode, with one backward pass for all implementations: ``cmkernel.gradient``. It computes
    ``d_lhs`` by a matmul and a reduce-scatter in float32, and ``d_rhs`` from the gathered lhs. Not for ``jax.jvp``, and
    with the ``mosaic_gpu`` kernels neither for ``jax.vmap`` nor for second derivatives: all raise.

    Args:
      lhs: This rank's rows of the left operand.
      rhs: This rank's columns of the right operand.
      axis_name: Mesh axis that the rows of lhs are sharded over; or two, (host axis, device axis), with the ranks of a
        host along the second. The ``mosaic_gpu`` kernels need one axis, which covers all devices.
      implementation: ``mosaic_gpu`` (one Pallas kernel, Hopper), ``mosaic_gpu_simple`` (its readable form),
        ``ppermute`` (portable ring), ``ppermute_two_level`` (the same over hosts: ``cmkernel.ring.TwoLevelRing``) or
        ``xla`` (all-gather, then matmul) run just that or raise. ``auto`` takes what the cost model expects to be
        fastest, and logs why: where ``mosaic_gpu`` can run, that or another one (few rows go to ``xla``); else one of
        the portable rings. With a ``config`` it takes ``mosaic_gpu`` where that can run.
      config: ``KernelConfig`` of ``mosaic_gpu``, ``SimpleKernelConfig`` of ``mosaic_gpu_simple``, ``PpermuteConfig`` of
        ``ppermute``; by default chosen from the shape: ``cmkernel.tuned``.
      table: Tuned configs to choose from; by default those that ship with this package. The same on every rank.
      devices_per_host: With a single axis: it runs host by host, over so many ranks on each. A host is what NVLink
        joins, so ``mosaic_gpu`` runs on one only. ``None``: not known, ``auto`` takes the flat ring.
      links: Bandwidths by which ``auto`` chooses between the portable rings; by default ``cost.default_links``.
      out_dtype: Of the result: that of the operands, which is the default, or float32 (not with
        ``mosaic_gpu_simple``).
      save_gathered_lhs: Where the gradient takes the gathered lhs from. ``False`` keeps lhs and gathers it again in the
        backward pass: one more all-gather, which may overlap with the multiply for ``d_lhs``. ``True`` keeps the
        gathered lhs, ``axis_size`` times the memory. No implementation communicates more for it: ``xla`` has it anyway,
        the rings copy it once, from the shards that they received. Under ``jax.checkpoint`` what is kept comes from the
        repeated forward pass and lives no longer than that layer's backward pass, so ``True`` is cheap there.

    Raises:
      ValueError: The operands or ``config`` break a rule; the message names the value and the rule.
      NotImplementedError: ``implementation`` can't run here, on these dtypes or on this mesh. From jax, when the
        program is lowered: a ``mosaic_gpu`` kernel, named or taken by ``auto``, over a mesh whose devices aren't in the
        order of their ids.
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
    """The forward pass of ``choice``, without and with the gathered lhs as a second result."""
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
    # Also how many shards in a row are of one host, in what the ring leaves behind.
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
    """``function``, refused where jax would transform its kernel.

    Under ``jax.vmap``, as it counts arrivals once a call, not once a batch element; and where a gradient is
    differentiated again, as that would differentiate the kernel itself.
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
