"""Attacks on the reduce-scatter kernel with virtual ranks, as ``attacks`` has them for the all-gather."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from cmkernel import reference, ring
from cmkernel.config import MatmulDimension, ScatterKernelConfig
from cmkernel.virtual_ring import virtual_ring_matmul_reduce_scatter
from tests.gpu.attacks import DELAYS, SMALL_SHAPE, Shape, draw, draw_rhs


class Form(NamedTuple):
    """A kernel's tiles, and the types of partial sums and result."""

    config: ScatterKernelConfig
    partial_dtype: Any = jnp.bfloat16
    out_dtype: Any = jnp.bfloat16


_small = functools.partial(ScatterKernelConfig, tile_m=64, tile_n=64, max_concurrent_steps=3)
FORMS = {
    "small tiles": Form(_small()),
    "largest tiles": Form(ScatterKernelConfig()),
    "along N": Form(_small(wg_dimension=MatmulDimension.N)),
    "float32 partials": Form(_small(tile_n=128), partial_dtype=jnp.float32),
    "float32 result": Form(_small(), out_dtype=jnp.float32),
}

Multiply = Callable[[jax.Array, jax.Array], jax.Array]


def virtual_scatter(num_ranks: int, form: str, delay: str = "none", *, calls: int, kind: str = "integers") -> int:
    """Wrong elements in ``calls`` calls."""
    return judge(multiply_of(form, delay), num_ranks, FORMS[form], SMALL_SHAPE, calls=calls, kind=kind)


def virtual_scatter_repeated(num_ranks: int, form: str, *, calls: int) -> int:
    """Elements in ``calls`` calls on the same normal data that differ from the first call's."""
    multiply = jax.jit(multiply_of(form, "scattered"))
    lhs, rhs = _programs(num_ranks, SMALL_SHAPE, "normal", jnp.bfloat16)[0](0)
    first = multiply(lhs, rhs)
    return sum(int(jnp.sum(multiply(lhs, rhs) != first)) for _ in range(calls))


def multiply_of(form: str, delay: str, num_sms: int | None = None) -> Multiply:
    """The kernel of D virtual ranks: lhs ``[D, D * m_shard, k]``, rhs ``[D, k, n]`` -> ``[D, m_shard, n]``."""
    config, partial_dtype, out_dtype = FORMS[form]
    types = {"partial_dtype": partial_dtype, "out_dtype": out_dtype}
    return functools.partial(
        virtual_ring_matmul_reduce_scatter, config=config, delay=DELAYS[delay], num_sms=num_sms, **types
    )


def judge(multiply: Multiply, num_ranks: int, form: Form, shape: Shape, *, calls: int, kind: str) -> int:
    """Wrong elements of any such function: not the exact sum of rounded integers, or outside the tolerance."""
    operands, judge = _programs(num_ranks, shape, kind, form.partial_dtype)
    multiply = jax.jit(multiply)

    def call(seed: int) -> jax.Array:
        lhs, rhs = operands(seed)
        return judge(multiply(lhs, rhs), lhs, rhs)

    return sum(map(int, jax.block_until_ready([call(seed) for seed in range(calls)])))


@functools.cache
def _programs(num_ranks: int, shape: Shape, kind: str, partial_dtype: Any) -> tuple[Callable[..., Any], ...]:
    # Compiled once for all tiles and delays.
    judge = _num_different if kind == "integers" else _num_outside
    operands = functools.partial(_operands, num_ranks=num_ranks, shape=shape, kind=kind)
    return jax.jit(operands), jax.jit(functools.partial(judge, partial_dtype=partial_dtype))


def _operands(seed: Any, num_ranks: int, shape: Shape, kind: str) -> tuple[jax.Array, jax.Array]:
    sizes = num_ranks * shape.m_shard, shape.k
    lhs = jnp.stack([draw(kind, seed, rank, sizes) for rank in range(num_ranks)])
    return lhs, jnp.stack([draw_rhs(kind, seed, rank, shape) for rank in range(num_ranks)])


def _num_different(out: jax.Array, lhs: jax.Array, rhs: jax.Array, partial_dtype: Any) -> jax.Array:
    num_ranks, _, n = out.shape
    partials = jnp.einsum("dmk,dkn->dmn", lhs, rhs, preferred_element_type=jnp.float32)
    partials = partials.reshape(num_ranks, num_ranks, -1, n)  # by sender and owner
    # Not a conversion there and back, which XLA may drop.
    info = jnp.finfo(partial_dtype)
    rounded = lax.reduce_precision(partials, info.nexp, info.nmant)
    num_wrong = jnp.int32(0)
    for owner in range(num_ranks):
        total = partials[owner, owner]
        for slot in range(num_ranks - 1):
            total += rounded[ring.partial_sender(owner, slot, num_ranks), owner]
        num_wrong += reference.count(out[owner] != total.astype(out.dtype))
    return num_wrong


def _num_outside(out: jax.Array, lhs: jax.Array, rhs: jax.Array, partial_dtype: Any) -> jax.Array:
    num_ranks, _, n = out.shape
    all_k = jnp.moveaxis(lhs, 0, 1).reshape(lhs.shape[1], -1), rhs.reshape(-1, n)
    options = {"num_ranks": num_ranks, "partial_dtype": partial_dtype}
    found = reference.compare_reduced(out.reshape(-1, n), *all_k, **options)
    return found.num_wrong + ~(found.relative_error <= found.relative_tolerance)
