"""Is the result right? Every implementation must pass before it is timed."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from cmkernel import reference
from jobs.config.choices import Fault
from jobs.measure import inputs
from jobs.measure.pulse import PULSE
from jobs.records.check import RankCheck

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jobs.measure.programs import Programs
    from jobs.records.case import Case

# XLA would try out some hundred kernels for the oracle's multiply, for longer than it runs.
_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
_compare = jax.jit(reference.compare, compiler_options=_OPTIONS)
_num_different = jax.jit(reference.num_different, compiler_options=_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is checked: an implementation's programs, on one rank."""

    program: Programs
    case: Case
    mesh: Mesh
    rank: int
    fault: Fault


def check(subject: Subject, *, calls: int, num_sets: int, chain_length: int, seed: int) -> RankCheck:
    """Compare this rank's results with the oracle.

    ``calls`` single calls with fresh normal data and one with integers, issued back to back before any result is read
    (with ``calls=0`` none at all); then the chain, whose last result must be that of its last operands, with normal
    data and with integers. Results of integers must match bit for bit.

    Args:
      subject: what is checked.
      calls: single calls with normal data.
      num_sets: operand sets that the chain takes.
      chain_length: its calls.
      seed: the data's; the seeds from here on are used.
    """
    seeds = itertools.count(seed)
    drawn = [(next(seeds), False) for _ in range(calls)] + [(next(seeds), True) for _ in range(min(calls, 1))]
    results = [subject.program.call(*draw(subject, seed, integers)) for seed, integers in drawn]
    found = [compare_with_oracle(subject, *one) for one in zip(results, drawn, strict=True)]
    last = (chain_length - 1) % num_sets
    for integers in (False, True):
        chain_seeds = [next(seeds) for _ in range(num_sets)]
        sets = [draw(subject, s, integers and i == last) for i, s in enumerate(chain_seeds)]
        lhs_sets, rhs_sets = zip(*sets, strict=True)
        result = subject.program.chain(lhs_sets, rhs_sets)
        found.append(compare_with_oracle(subject, result, (chain_seeds[last], integers)))
    return summarize(subject.case, found)


def draw(subject: Subject, seed: int, integers: bool) -> tuple[Any, Any]:
    """Operands of one call, as the subject takes them."""
    return subject.program.arguments(
        inputs.operands(subject.case, subject.mesh, subject.rank, seed, integers=integers),
        inputs.local_operands(subject.case, subject.rank, seed, integers=integers),
    )


def compare_with_oracle(subject: Subject, result: Any, drawn: tuple[int, bool]) -> reference.Comparison | int:
    """Distance from the oracle; of integers, the number of elements that differ."""
    seed, integers = drawn
    shard = subject.program.shard(result)
    if subject.fault is not Fault.none and subject.rank == subject.case.num_ranks - 1:
        shard = _plant(subject.fault, shard, subject.case)
    local = inputs.local_operands(subject.case, subject.rank, seed, integers=integers)
    found = int(_num_different(shard, *local)) if integers else jax.device_get(_compare(shard, *local))
    PULSE.beat()
    return found


def is_wrong(found: reference.Comparison | int) -> bool:
    """Whether one result is out of tolerance, or not exact where it must be."""
    if isinstance(found, int):
        return found > 0
    return bool(found.num_wrong > 0 or not found.relative_error <= found.relative_tolerance)


def summarize(case: Case, found: list[reference.Comparison | int]) -> RankCheck:
    """The check of several results, one of them at least of normal data."""
    comparisons = [f for f in found if isinstance(f, reference.Comparison)]
    num_different = sum(f for f in found if isinstance(f, int))
    num_wrong = sum(int(c.num_wrong) for c in comparisons)
    return RankCheck(
        passed=not any(map(is_wrong, found)),
        calls=len(found),
        num_elements=len(found) * case.num_ranks * case.m_shard * case.n_shard,
        num_wrong=num_wrong + num_different,
        # np.max keeps a NaN, which Python's max may lose.
        max_error=float(np.max([c.max_error for c in comparisons])),
        relative_error=float(np.max([c.relative_error for c in comparisons])),
        relative_tolerance=float(np.max([c.relative_tolerance for c in comparisons])),
        integers_exact=num_different == 0,
    )


def _plant(fault: Fault, shard: jax.Array, case: Case) -> jax.Array:
    """The result as a broken kernel would leave it."""
    if fault is Fault.wrong_element:
        return shard.at[-1, -1].add(jnp.asarray(case.k, shard.dtype))
    return jnp.roll(shard, case.m_shard, axis=0)
