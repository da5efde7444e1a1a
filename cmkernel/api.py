"""Public entry points: choose an implementation, make it differentiable and handle a batch dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from cmkernel import gradient, passes
from cmkernel.choice import Implementation, ScatterImplementation, choose_implementation
from cmkernel.config import Config
from cmkernel.cost import Links
from cmkernel.operands import AxisName
from cmkernel.tuned import Table

if TYPE_CHECKING:
    from jaxtyping import Array, Float


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
    partial_dtype: jax.typing.DTypeLike | None = None,
) -> Float[Array, "*batch m n_shard"]:
    """Compute ``all_gather(lhs, axis=-2) @ rhs`` over mesh axis ``axis_name``, inside ``jax.shard_map``.

    Per rank: lhs ``[m_shard, k]``, rhs ``[k, n_shard]``, both f16, bf16 or f32 (not f32 with the ``mosaic_gpu``
    kernels); result ``[axis_size * m_shard, n_shard]`` in ``out_dtype``, accumulated in float32 and rounded once. Rank
    ``i`` contributes rows ``[i * m_shard, (i + 1) * m_shard)``. ``jax.shard_map`` needs ``check_vma=False``.

    With a batch, lhs ``[batch, m_shard, k]`` gives ``[batch, axis_size * m_shard, n_shard]``, with the same row order
    in each element. The batch runs as one multiply of ``batch * m_shard`` rows. That multiply returns its result rank
    by rank, so a batch above 1 costs one copy of the result, and one copy of its cotangent in the backward pass.

    Differentiable in reverse mode (``cmkernel.gradient``). ``d_lhs`` is a ``matmul_reduce_scatter`` of the cotangent
    and ``rhs^T``, by the same implementation where it has one, else by ``xla``; ``auto`` chooses for the backward pass
    anew. ``d_rhs`` is a matmul with the gathered lhs. ``jax.jvp`` raises. With the ``mosaic_gpu`` kernels,
    ``jax.vmap`` and second derivatives raise too.

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
      partial_dtype: What the reduce-scatter for ``d_lhs`` sends: float32 (the default), in which ``d_lhs`` is summed in
        float32 over all ranks and rounded once, or the operands' dtype. That halves the bytes and rounds each rank's
        partial sum once more, which moves ``d_lhs`` by at most ``u sum_r |partial_r|``, ``u`` being the unit roundoff
        (2**-8 in bf16, 2**-11 in f16); ``xla`` may round each sum of partials as well.

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
        partial_dtype=partial_dtype,
    )
    multiply, multiply_and_gather = passes.gather_passes(
        choice,
        axis_name=axis_name,
        devices_per_host=devices_per_host,
        out_dtype=lhs.dtype if out_dtype is None else out_dtype,
    )
    product = gradient.differentiable_gather(
        multiply,
        multiply_and_gather,
        passes.scatter_of_gather(
            implementation,
            axis_name=axis_name,
            table=table,
            partial_dtype=jnp.float32 if partial_dtype is None else partial_dtype,
        ),
        axis_name=axis_name,
        save_gathered_lhs=save_gathered_lhs,
    )
    *batch, m_shard, k = lhs.shape
    out = product(lhs.reshape(-1, k), rhs)
    # [axis_size, *batch, m_shard, n_shard] -> [*batch, axis_size, m_shard, n_shard]
    by_rank = out.reshape(-1, *batch, m_shard, rhs.shape[1])
    return jnp.moveaxis(by_rank, 0, -3).reshape(*batch, -1, rhs.shape[1])


def matmul_reduce_scatter(
    lhs: Float[Array, "*batch m k_shard"],
    rhs: Float[Array, "k_shard n"],
    *,
    axis_name: AxisName,
    implementation: ScatterImplementation = "auto",
    config: Config | None = None,
    table: Table | None = None,
    out_dtype: jax.typing.DTypeLike | None = None,
    partial_dtype: jax.typing.DTypeLike | None = None,
) -> Float[Array, "*batch m_shard n"]:
    """Compute ``reduce_scatter(lhs @ rhs, axis=-2)`` over mesh axis ``axis_name``, inside ``jax.shard_map``.

    Per rank: lhs ``[m, k_shard]``, rhs ``[k_shard, n]``, both f16, bf16 or f32; result ``[m / axis_size, n]`` in
    ``out_dtype``. Rank ``i`` gets rows ``[i * m / axis_size, (i + 1) * m / axis_size)`` of the sum over ranks. It is
    the other half of ``all_gather_matmul``: the way out of a tensor-parallel layer, where that is the way in.
    ``jax.shard_map`` needs ``check_vma=False``.

    With a batch, lhs ``[batch, m, k_shard]`` gives ``[batch, m / axis_size, n]``. The batch runs as one multiply, so a
    batch above 1 costs one copy of lhs, and one copy of its gradient in the backward pass.

    Each rank multiplies the others' rows first and sends every partial sum straight to its owner. Products are
    accumulated in float32. The owner adds the partial sums to its own, in float32 and in a fixed order (``xla`` leaves
    order and rounding to XLA), and rounds once to ``out_dtype``. So results are the same in every call.

    Differentiable in reverse mode (``cmkernel.gradient``). ``d_lhs`` is an ``all_gather_matmul`` of the cotangent and
    ``rhs^T`` by the same implementation (``auto`` chooses anew). The cotangent that this gathers also serves ``d_rhs``,
    a local matmul: one gather, which overlaps with the multiply for ``d_lhs``. ``jax.jvp`` raises. With ``mosaic_gpu``,
    ``jax.vmap`` and second derivatives raise too.

    Args:
      lhs: All rows of the left operand, and this rank's columns of it.
      rhs: This rank's rows of the right operand.
      axis_name: Mesh axis that k is sharded over and the result's rows are scattered over, or two axes, of which the
        first one counts slower. The ``mosaic_gpu`` kernel needs a single axis over all devices.
      implementation: ``mosaic_gpu`` (one Pallas kernel, Hopper, f16 or bf16), ``ppermute`` (portable ring) and ``xla``
        (matmul, then ``psum_scatter``) run exactly that or raise. ``auto`` takes what the cost model expects to be
        fastest, and logs why; where ``mosaic_gpu`` can't run, ``ppermute``.
      config: ``ScatterKernelConfig`` for ``mosaic_gpu``, ``PpermuteConfig`` for ``ppermute``. By default chosen from
        the shape: ``cmkernel.tuned``.
      table: Tuned configs to choose from, by default those shipped with this package. Must be the same on every rank.
      out_dtype: Dtype of the result: the operands' (the default) or float32.
      partial_dtype: What travels: the operands' dtype (the default, as in PyTorch, TransformerEngine and Megatron) or
        float32. The default rounds each rank's partial sum once. That moves the result by at most ``u sum_r
        |partial_r|``, ``u`` being the unit roundoff of the dtype: 2**-8 in bf16, 2**-11 in f16
        (``cmkernel.reference.compare_reduced``). ``xla`` may round each sum of partials as well, so its error grows
        with the number of ranks. float32 rounds nothing but the result, and sends twice the bytes.

    Raises:
      ValueError: The operands or ``config`` break a rule: rows that don't divide among the ranks, mixed dtypes, an
        implementation that this operation hasn't. The message names the value and the rule.
      NotImplementedError: as ``all_gather_matmul``.
    """
    choice = choose_implementation(
        lhs,
        rhs,
        axis_name=axis_name,
        op="matmul_reduce_scatter",
        implementation=implementation,
        config=config,
        table=table,
        out_dtype=out_dtype,
        partial_dtype=partial_dtype,
    )
    multiply = passes.scatter_pass(
        choice,
        axis_name=axis_name,
        out_dtype=lhs.dtype if out_dtype is None else out_dtype,
        partial_dtype=lhs.dtype if partial_dtype is None else partial_dtype,
    )
    gather = passes.gather_of_scatter(implementation, axis_name=axis_name, table=table)
    product = gradient.differentiable_scatter(multiply, gather)
    *batch, _, k_shard = lhs.shape
    # Rank by rank, all elements of the batch: [*batch, axis_size, m_shard, k_shard] -> [axis_size, *batch, ...]
    by_rank = jnp.moveaxis(lhs.reshape(*batch, lax.axis_size(axis_name), -1, k_shard), -3, 0)
    return product(by_rank.reshape(-1, k_shard), rhs).reshape(*batch, -1, rhs.shape[1])
