"""Comparison of results with an oracle; an implementation must pass before it is timed."""

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

# XLA would autotune some hundred kernels for the oracle's multiply, which takes longer than running it.
_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
_compare = jax.jit(reference.compare, compiler_options=_OPTIONS)
_num_different = jax.jit(reference.num_different, compiler_options=_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Subject:
    """The programs of one implementation, to be checked on one rank."""

    program: Programs
    case: Case
    mesh: Mesh
    rank: int
    fault: Fault


def check(subject: Subject, *, calls: int, num_sets: int, chain_length: int, seed: int) -> RankCheck:
    """Compare this rank's results with the oracle.

    First come ``calls`` single calls with fresh normal data and one with integers, issued back to back before any
    result is read; ``calls=0`` skips them. Then the chain runs twice, with normal data and with integers; its result
    must be that of its last operands. Results of integers must match bit for bit.

    Args:
      subject: programs to check.
      calls: number of single calls with normal data.
      num_sets: operand sets of the chain.
      chain_length: calls in the chain.
      seed: first seed of the data; each operand set takes the next one.
    """
    seeds = itertools.count(seed)
    drawn = [(next(seeds), False) for _ in range(calls)] + [(next(seeds), True) for _ in range(min(calls, 1))]
    results = [subject.program.call(*draw(subject, seed, integers)) for seed, integers in drawn]
    outcomes = [compare_with_oracle(subject, *one) for one in zip(results, drawn, strict=True)]
    last = (chain_length - 1) % num_sets
    for integers in (False, True):
        chain_seeds = [next(seeds) for _ in range(num_sets)]
        sets = [draw(subject, s, integers and i == last) for i, s in enumerate(chain_seeds)]
        lhs_sets, rhs_sets = zip(*sets, strict=True)
        result = subject.program.chain(lhs_sets, rhs_sets)
        outcomes.append(compare_with_oracle(subject, result, (chain_seeds[last], integers)))
    return summarize(subject.case, outcomes)


def draw(subject: Subject, seed: int, integers: bool) -> tuple[Any, Any]:
    """Operands of one call, in the form that the subject takes."""
    return subject.program.arguments(
        inputs.operands(subject.case, subject.mesh, subject.rank, seed, integers=integers),
        inputs.local_operands(subject.case, subject.rank, seed, integers=integers),
    )


def compare_with_oracle(subject: Subject, result: Any, drawn: tuple[int, bool]) -> reference.Comparison | int:
    """Distance from the oracle; for integers, the number of elements that differ."""
    seed, integers = drawn
    shard = subject.program.shard(result)
    if subject.fault is not Fault.none and subject.rank == subject.case.num_ranks - 1:
        shard = _plant(subject.fault, shard, subject.case)
    local = inputs.local_operands(subject.case, subject.rank, seed, integers=integers)
    outcome = int(_num_different(shard, *local)) if integers else jax.device_get(_compare(shard, *local))
    PULSE.beat()
    return outcome


def is_wrong(outcome: reference.Comparison | int) -> bool:
    """Return whether one result is out of tolerance, or not exact for integers."""
    if isinstance(outcome, int):
        return outcome > 0
    # Not `>`, which is false for a NaN.
    return bool(outcome.num_wrong > 0 or not outcome.relative_error <= outcome.relative_tolerance)


def summarize(case: Case, outcomes: list[reference.Comparison | int]) -> RankCheck:
    """Summary of several results; at least one must be of normal data."""
    comparisons = [one for one in outcomes if isinstance(one, reference.Comparison)]
    num_different = sum(one for one in outcomes if isinstance(one, int))
    num_wrong = sum(int(c.num_wrong) for c in comparisons)
    return RankCheck(
        passed=not any(map(is_wrong, outcomes)),
        calls=len(outcomes),
        num_elements=len(outcomes) * case.num_ranks * case.m_shard * case.n_shard,
        num_wrong=num_wrong + num_different,
        # np.max keeps a NaN; Python's max may lose it.
        max_error=float(np.max([c.max_error for c in comparisons])),
        relative_error=float(np.max([c.relative_error for c in comparisons])),
        relative_tolerance=float(np.max([c.relative_tolerance for c in comparisons])),
        integers_exact=num_different == 0,
    )


def _plant(fault: Fault, shard: jax.Array, case: Case) -> jax.Array:
    """Damage the result as a broken kernel would."""
    if fault is Fault.wrong_element:
        return shard.at[-1, -1].add(jnp.asarray(case.k, shard.dtype))
    return jnp.roll(shard, case.m_shard, axis=0)
