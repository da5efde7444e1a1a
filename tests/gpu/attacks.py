"""Attacks on the ring kernel, as functions that run in a rank: each returns how many elements were wrong.

Operands are fresh in each call, and every call is compared on the device. A rank draws all shards by itself, so that
only the kernel communicates: a collective in the check would bring ranks back into step.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from cmkernel import hardware, mosaic_gpu, performance_model, ppermute, reference
from cmkernel.config import KernelConfig
from cmkernel.mosaic_gpu_cta import LOAD_WARP, SEND_WARP
from cmkernel.virtual_ring import virtual_ring_all_gather_matmul


class Shape(NamedTuple):
    """Sizes of a rank's operands: lhs ``[m_shard, k]``, rhs ``[k, n_shard]``."""

    m_shard: int
    k: int
    n_shard: int


Multiply = Callable[[jax.Array, jax.Array], jax.Array]
Judge = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

# Ways of sending, with tiles of the real size.
FORMS: dict[str, KernelConfig] = {
    "communication CTAs": KernelConfig(),
    "in-tile": KernelConfig(num_comm_ctas=0),
    "polling warp": KernelConfig(wait_ahead=True, num_chunks=16),
    "both ways, halves": KernelConfig(num_in_tile_chunks=1, split_last_wave=True),
}
HEURISTIC = "heuristic"
SHAPE = Shape(512, 1024, 1024)

_small = functools.partial(KernelConfig, tile_m=64, tile_n=64, max_concurrent_steps=3, num_chunks=3)
# The same with small tiles, for rings that share the CTAs of one GPU.
SMALL_FORMS: dict[str, KernelConfig] = {
    "communication CTAs": _small(num_comm_ctas=2),
    "in-tile": _small(num_comm_ctas=0),
    "polling warp": _small(num_comm_ctas=3, wait_ahead=True, num_chunks=6),
    "in-tile, polling warp": _small(num_comm_ctas=0, wait_ahead=True, num_chunks=6),
    "both ways, halves": _small(tile_n=128, num_comm_ctas=1, num_in_tile_chunks=1, split_last_wave=True),
}
# Tiles over the edges of the shard, and more tiles than CTAs.
SMALL_SHAPE = Shape(328, 832, 712)


# Delays: microseconds that a loading or sending warp sleeps before a tile or a piece.


def scattered(rank: Any, cta: Any, warp: int, step: Any) -> Any:
    """Every warp sleeps, neighbours for different times, up to 50 us."""
    return lax.rem(rank * 79 + cta * 37 + (warp + 1) * 13 + step * 57, jnp.int32(50))


def late(slow_warp: int, parity: int) -> Callable[..., Any]:
    """One warp of rank 1 sleeps 200 us in each step of this parity."""

    def delay(rank: Any, cta: Any, warp: int, step: Any) -> Any:
        is_late = (rank == 1) & (lax.rem(step, jnp.int32(2)) == parity)
        return lax.select(is_late, jnp.int32(200 if warp == slow_warp else 0), jnp.int32(0))

    return delay


DELAYS: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "scattered": scattered,
    "late loads, even steps": late(LOAD_WARP, 0),
    "late loads, odd steps": late(LOAD_WARP, 1),
    "late sends, even steps": late(SEND_WARP, 0),
    "late sends, odd steps": late(SEND_WARP, 1),
}


# Operands and judges.


def draw(kind: str, seed: Any, stream: Any, shape: tuple[int, int]) -> jax.Array:
    """A bf16 matrix of small integers, or of normal numbers; the seed is that of the call."""
    key = jax.random.fold_in(jax.random.key(seed), stream)
    if kind == "integers":
        return jax.random.randint(key, shape, -2, 3).astype(jnp.bfloat16)
    return jax.random.normal(key, shape).astype(jnp.bfloat16)


def draw_lhs(kind: str, seed: Any, num_ranks: int, shape: Shape) -> jax.Array:
    """The shards of all ranks, ``[D, m_shard, k]``."""
    return jnp.stack([draw(kind, seed, rank, (shape.m_shard, shape.k)) for rank in range(num_ranks)])


def draw_rhs(kind: str, seed: Any, rank: Any, shape: Shape) -> jax.Array:
    """One rank's rhs, ``[k, n_shard]``."""
    return draw(kind, seed, 100 + rank, (shape.k, shape.n_shard))


def num_different(out: jax.Array, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Elements that aren't the exact product of integers, rounded once; lhs ``[D, m_shard, k]``."""
    # bf16 products of small integers are exact in float32, whatever the order of the sums.
    expected = jnp.dot(lhs.reshape(-1, lhs.shape[-1]), rhs, preferred_element_type=jnp.float32)
    return reference.count(out != expected.astype(out.dtype))


def num_outside(out: jax.Array, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Elements outside the tolerance around the float32 oracle; the norms' excess counts as one."""
    comparison = reference.compare(out, lhs.reshape(-1, lhs.shape[-1]), rhs)
    return comparison.num_wrong + ~(comparison.relative_error <= comparison.relative_tolerance)


JUDGES: dict[str, Judge] = {"integers": num_different, "normal": num_outside}


# D virtual ranks on one GPU.


def virtual_ring(
    num_ranks: int, form: str, delay: str = "none", *, calls: int, kind: str = "integers", out_dtype: str | None = None
) -> int:
    """Wrong elements in ``calls`` calls."""
    multiply = functools.partial(
        virtual_ring_all_gather_matmul,
        config=SMALL_FORMS[form],
        delay=DELAYS[delay],
        out_dtype=out_dtype and jnp.dtype(out_dtype),
    )
    return judge_virtual_ring(multiply, num_ranks, SMALL_SHAPE, calls=calls, kind=kind)


def judge_virtual_ring(multiply: Multiply, num_ranks: int, shape: Shape, *, calls: int, kind: str) -> int:
    """The same for any function of lhs ``[D, m_shard, k]`` and rhs ``[D, k, n_shard]``."""
    operands, judge = _virtual_programs(num_ranks, shape, kind)
    multiply = jax.jit(multiply)

    def call(seed: int) -> jax.Array:
        lhs, rhs = operands(seed)
        return judge(multiply(lhs, rhs), lhs, rhs)

    return sum(map(int, jax.block_until_ready([call(seed) for seed in range(calls)])))


@functools.cache
def _virtual_programs(num_ranks: int, shape: Shape, kind: str) -> tuple[Callable[..., Any], Judge]:
    # Compiled once for all forms and delays.
    @jax.jit
    def operands(seed: Any) -> tuple[jax.Array, jax.Array]:
        rhs = [draw_rhs(kind, seed, rank, shape) for rank in range(num_ranks)]
        return draw_lhs(kind, seed, num_ranks, shape), jnp.stack(rhs)

    @jax.jit
    def judge(out: jax.Array, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return jnp.sum(jnp.stack([JUDGES[kind](out[rank], lhs, rhs[rank]) for rank in range(num_ranks)]))

    return operands, judge


def virtual_ring_repeated(num_ranks: int, form: str, *, calls: int) -> int:
    """Elements in ``calls`` calls on the same normal data that differ from the first call's."""
    multiply = jax.jit(functools.partial(virtual_ring_all_gather_matmul, config=SMALL_FORMS[form]))
    lhs, rhs = _virtual_programs(num_ranks, SMALL_SHAPE, "normal")[0](0)
    return _num_changed(lambda: multiply(lhs, rhs), calls)


def _num_changed(multiply: Callable[[], jax.Array], calls: int) -> int:
    different = jax.jit(lambda a, b: jnp.sum(a != b, dtype=jnp.int32))

    def mine() -> jax.Array:
        return multiply().addressable_shards[0].data

    first = mine()
    return sum(map(int, jax.block_until_ready([different(mine(), first) for _ in range(calls)])))


# A rank on each GPU.


def unsupported_reason() -> str | None:
    """Why the kernel can't run over all devices of this world, or ``None``."""
    reasons: list[str | None] = []

    def ask(x: jax.Array) -> jax.Array:
        reasons.append(hardware.unsupported_reason(axis_name="x"))
        return x

    jax.eval_shape(_sharded(ask, P("x"), P("x")), jax.ShapeDtypeStruct((jax.device_count(),), jnp.float32))
    return reasons[0]


def ring(
    form: str,
    delay: str = "none",
    *,
    calls: int,
    late_ranks: bool = False,
    kind: str = "integers",
    out_dtype: str | None = None,
) -> int:
    """Wrong elements on this rank in ``calls`` calls; ``late_ranks``: ranks come to a call up to 5 ms apart."""
    lateness = random.Random(jax.process_index()) if late_ranks else None
    # Each live executable maps all of XLA's arena.
    jax.clear_caches()
    return judge_ring(_ring_multiply(form, SHAPE, delay, out_dtype), SHAPE, calls=calls, kind=kind, lateness=lateness)


def ring_repeated(*, calls: int) -> int:
    """Elements in ``calls`` calls on the same normal data that differ from the first call's, on this rank."""
    shape = Shape(1024, 4096, 4096)
    jax.clear_caches()
    operands, _ = _ring_programs(shape, "normal")
    lhs, rhs, _ = operands(0)
    multiply = _sharded(_ring_multiply(HEURISTIC, shape), (P("x", None), P(None, "x")), P(None, "x"))
    return _num_changed(lambda: multiply(lhs, rhs), calls)


def judge_ring(
    multiply: Multiply, shape: Shape, *, calls: int, kind: str, lateness: random.Random | None = None
) -> int:
    """The same for any function of a rank's lhs and rhs that sees mesh axis ``x``."""
    operands, judge = _ring_programs(shape, kind)
    multiply = _sharded(multiply, (P("x", None), P(None, "x")), P(None, "x"))
    counts = []
    for seed in range(calls):
        lhs, rhs, gathered = operands(seed)
        if lateness is not None:
            time.sleep(lateness.choice([0, 0, 1e-4, 1e-3, 5e-3]))
        counts.append(judge(multiply(lhs, rhs), gathered, rhs))
        # Not in every call: ranks should meet with calls in flight, and without.
        if lateness is not None and seed % 7 == 0:
            jax.block_until_ready(counts[-1])
    return sum(int(count.addressable_shards[0].data[0]) for count in jax.block_until_ready(counts))


def _ring_multiply(form: str, shape: Shape, delay: str = "none", out_dtype: str | None = None) -> Multiply:
    dtype = out_dtype and jnp.dtype(out_dtype)
    if jax.default_backend() == "cpu":
        return functools.partial(ppermute.ring_all_gather_matmul, axis_name="x", out_dtype=dtype)
    if form == HEURISTIC:
        config = performance_model.heuristic_config(
            **shape._asdict(), num_ranks=jax.device_count(), num_sms=hardware.num_sms()
        )
    else:
        config = FORMS[form]
    return functools.partial(
        mosaic_gpu.ring_all_gather_matmul, axis_name="x", config=config, delay=DELAYS[delay], out_dtype=dtype
    )


def _ring_programs(shape: Shape, kind: str) -> tuple[Callable[..., Any], Judge]:
    num_ranks = jax.device_count()

    def operands(seed: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        rank, gathered = lax.axis_index("x"), draw_lhs(kind, seed, num_ranks, shape)
        mine = lax.dynamic_index_in_dim(gathered, rank, keepdims=False)
        return mine, draw_rhs(kind, seed, rank, shape), gathered[None]

    def judge(out: jax.Array, gathered: jax.Array, rhs: jax.Array) -> jax.Array:
        return JUDGES[kind](out, gathered[0], rhs)[None]

    every, column = P("x", None, None, None), P(None, "x")
    return (
        _sharded(operands, P(), (P("x", None), column, every)),
        _sharded(judge, (column, every, column), P("x")),
    )


def _sharded(function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))
