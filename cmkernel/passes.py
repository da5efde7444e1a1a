"""Forward and backward passes of a chosen implementation, as functions that ``cmkernel.gradient`` combines."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from cmkernel import gradient, mosaic_gpu, mosaic_gpu_scatter, mosaic_gpu_simple, ppermute, xla
from cmkernel.choice import Choice, Implementation, choose_implementation
from cmkernel.operands import AxisName, find_hosts
from cmkernel.tuned import Table

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
_SCATTERS: dict[str, Callable[..., Any]] = {
    "mosaic_gpu": mosaic_gpu_scatter.ring_matmul_reduce_scatter,
    "ppermute": ppermute.ring_matmul_reduce_scatter,
    "xla": xla.dot_then_reduce_scatter,
}
_KERNELS = ("mosaic_gpu", "mosaic_gpu_simple")
# Implementation that the backward pass of an all_gather_matmul runs its reduce-scatter by.
_SCATTER_OF: dict[Implementation, Implementation] = {
    "auto": "auto",
    "mosaic_gpu": "mosaic_gpu",
    "mosaic_gpu_simple": "xla",
    "ppermute": "ppermute",
    "ppermute_two_level": "xla",
    "xla": "xla",
}


def gather_passes(
    choice: Choice, *, axis_name: AxisName, devices_per_host: int | None, out_dtype: jax.typing.DTypeLike
) -> tuple[gradient.Multiply, gradient.MultiplyAndGather]:
    """Return the all-gather matmul of ``choice`` without and with the gathered lhs as a second result."""
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
        hosts = find_hosts(axis_name, devices_per_host)
        assert hosts is not None
        per_host["devices_per_host"] = hosts.devices_per_host
    ring, ring_with_received = _RINGS[choice.implementation]

    def multiply(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return ring(lhs, rhs, **options, **per_host)

    def multiply_and_gather(lhs: jax.Array, rhs: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, received = ring_with_received(lhs, rhs, **options, **per_host)
        return out, gradient.in_rank_order(lhs, received, axis_name=axis_name, **per_host)

    if choice.implementation not in _KERNELS:
        return multiply, multiply_and_gather
    return _called_only(multiply), _called_only(multiply_and_gather)


def scatter_pass(
    choice: Choice,
    *,
    axis_name: AxisName,
    out_dtype: jax.typing.DTypeLike,
    partial_dtype: jax.typing.DTypeLike,
) -> gradient.Multiply:
    """Return the matmul reduce-scatter of ``choice``."""
    options: dict[str, Any] = {"axis_name": axis_name, "out_dtype": out_dtype, "partial_dtype": partial_dtype}
    if choice.config is not None:
        options["config"] = choice.config
    multiply = functools.partial(_SCATTERS[choice.implementation], **options)
    return _called_only(multiply) if choice.implementation in _KERNELS else multiply


def scatter_of_gather(
    implementation: Implementation,
    *,
    axis_name: AxisName,
    table: Table | None,
    partial_dtype: jax.typing.DTypeLike,
) -> gradient.Multiply:
    """Return the reduce-scatter of the backward pass of an ``all_gather_matmul`` that asked for ``implementation``."""

    def multiply_and_scatter(d_out: jax.Array, transposed_rhs: jax.Array) -> jax.Array:
        choice = choose_implementation(
            d_out,
            transposed_rhs,
            axis_name=axis_name,
            op="matmul_reduce_scatter",
            implementation=_SCATTER_OF[implementation],
            table=table,
            partial_dtype=partial_dtype,
        )
        run = scatter_pass(choice, axis_name=axis_name, out_dtype=d_out.dtype, partial_dtype=partial_dtype)
        return run(d_out, transposed_rhs)

    return multiply_and_scatter


def gather_of_scatter(
    implementation: Implementation, *, axis_name: AxisName, table: Table | None
) -> gradient.MultiplyAndGather:
    """Return the all-gather matmul of the backward pass of a ``matmul_reduce_scatter``."""

    def multiply_and_gather(d_out: jax.Array, transposed_rhs: jax.Array) -> tuple[jax.Array, jax.Array]:
        choice = choose_implementation(
            d_out, transposed_rhs, axis_name=axis_name, implementation=implementation, table=table
        )
        passes = gather_passes(choice, axis_name=axis_name, devices_per_host=None, out_dtype=d_out.dtype)
        return passes[1](d_out, transposed_rhs)

    return multiply_and_gather


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
