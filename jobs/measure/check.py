"""Is the result right? Every implementation must pass before it is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from cmkernel import reference
from jobs.measure import inputs, programs
from jobs.records import RankCheck
from jobs.settings import Fault

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jobs.measure.programs import Programs
    from jobs.records import Case

# XLA would try out some hundred kernels for the oracle's multiply, for longer than it runs.
_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
_compare = jax.jit(reference.compare, compiler_options=_OPTIONS)
_num_different = jax.jit(reference.num_different, compiler_options=_OPTIONS)


def check(program: Programs, case: Case, mesh: Mesh, rank: int, *, seeds: list[int], fault: Fault) -> RankCheck:
    """Compare this rank's results with the oracle.

    One call for each seed but the last with normal data, and one with integers, which must match bit for bit. All calls
    are issued before any result is read: back to back, as a program would.
    """
    drawn = [(seed, seed == seeds[-1]) for seed in seeds]
    results = []
    for seed, integers in drawn:
        shared = inputs.operands(case, mesh, rank, seed, integers=integers)
        local = inputs.local_operands(case, rank, seed, integers=integers)
        results.append(program.call(*programs.arguments(program, shared, local)))
    found = []
    num_different = 0
    for (seed, integers), result in zip(drawn, results, strict=True):
        shard = result if program.is_local else result.addressable_shards[0].data
        if fault is not Fault.none and rank == case.num_ranks - 1:
            shard = _plant(fault, shard, case)
        local = inputs.local_operands(case, rank, seed, integers=integers)
        if integers:
            num_different = int(_num_different(shard, *local))
        else:
            found.append(jax.device_get(_compare(shard, *local)))
    num_wrong = sum(int(c.num_wrong) for c in found)
    within = all(c.relative_error <= c.relative_tolerance for c in found)
    return RankCheck(
        passed=bool(num_wrong == 0 and within and num_different == 0),
        num_elements=len(seeds) * case.num_ranks * case.m_shard * case.n_shard,
        num_wrong=num_wrong + num_different,
        # np.max keeps a NaN, which Python's max may lose.
        max_error=float(np.max([c.max_error for c in found])),
        relative_error=float(np.max([c.relative_error for c in found])),
        relative_tolerance=float(np.max([c.relative_tolerance for c in found])),
        integers_exact=num_different == 0,
    )


def _plant(fault: Fault, shard: jax.Array, case: Case) -> jax.Array:
    """The result as a broken kernel would leave it."""
    if fault is Fault.wrong_element:
        return shard.at[-1, -1].add(jnp.asarray(case.k, shard.dtype))
    return jnp.roll(shard, case.m_shard, axis=0)
