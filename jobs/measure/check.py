"""Comparison of results with an oracle; an implementation must pass before it is timed."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from cmkernel.reference import Comparison
from jobs.config.choices import Fault
from jobs.measure.operations import OPERATIONS
from jobs.measure.operations.operation import Place, Shards
from jobs.measure.pulse import PULSE
from jobs.records.check import RankCheck

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jobs.measure.programs import Programs
    from jobs.records.case import Case


@dataclasses.dataclass(frozen=True)
class Subject:
    """The programs of one implementation, to be checked on one rank."""

    program: Programs
    case: Case
    mesh: Mesh
    rank: int
    fault: Fault


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One call's results, compared with the oracle."""

    num_elements: int
    comparisons: tuple[Comparison, ...] = ()
    """One for each result of normal data."""
    num_different: int | None = None
    """Elements of integer results that aren't exact; ``None`` with normal data."""

    @property
    def num_wrong(self) -> int:
        """Elements that are out of tolerance or not exact."""
        return (self.num_different or 0) + sum(int(one.num_wrong) for one in self.comparisons)

    @property
    def is_wrong(self) -> bool:
        """True if a result is out of tolerance, or not exact with integers."""
        # Not `>`, which is false for a NaN.
        return self.num_wrong > 0 or any(not one.relative_error <= one.relative_tolerance for one in self.comparisons)


def check(subject: Subject, *, calls: int, num_sets: int, chain_length: int, seed: int) -> RankCheck:
    """Compare this rank's results with the oracle.

    First come ``calls`` single calls with fresh normal data and one with integers, issued back to back before any
    result is read; ``calls=0`` skips them. Then the chain runs twice, with normal data and with integers; its result
    must be that of its last operands. Results of integers must match bit for bit. A layer has no calls with integers.

    Args:
      subject: programs to check.
      calls: number of single calls with normal data.
      num_sets: operand sets of the chain.
      chain_length: calls in the chain.
      seed: first seed of the data; each operand set takes the next one.
    """
    seeds = itertools.count(seed)
    kinds = (False, True) if OPERATIONS[subject.case.op].has_integers else (False,)
    drawn = [(next(seeds), integers) for integers in kinds for _ in range(min(calls, 1) if integers else calls)]
    results = [subject.program.call(*draw(subject, seed, integers)) for seed, integers in drawn]
    outcomes = [compare_with_oracle(subject, *one) for one in zip(results, drawn, strict=True)]
    last = (chain_length - 1) % num_sets
    for integers in kinds:
        chain_seeds = [next(seeds) for _ in range(num_sets)]
        sets = [draw(subject, s, integers and i == last) for i, s in enumerate(chain_seeds)]
        outcomes.append(compare_with_oracle(subject, subject.program.chain(sets), (chain_seeds[last], integers)))
    return summarize(outcomes)


def draw(subject: Subject, seed: int, integers: bool) -> tuple[Any, ...]:
    """Operands of one call, in the form that the subject takes."""
    return subject.program.draw(subject.case, subject.mesh, subject.rank, seed, integers=integers)


def compare_with_oracle(subject: Subject, result: Any, drawn: tuple[int, bool]) -> Outcome:
    """Compare one call's results with the oracle, or its results of integers bit for bit."""
    program, (seed, integers) = subject.program, drawn
    operation, place = OPERATIONS[subject.case.op], Place(subject.case, subject.rank, seed)
    shards = program.shards(result)
    if subject.fault is not Fault.none and subject.rank == subject.case.num_ranks - 1:
        shards = (_plant(subject.fault, shards[0], subject.case), *shards[1:])
    num_elements = sum(shard.size for shard in shards)
    if integers:
        number = operation.num_different(place, shards, alone=program.is_local)
        outcome = Outcome(num_elements, num_different=number)
    else:
        outcome = Outcome(num_elements, tuple(jax.device_get(_comparisons(program, place, shards))))
    PULSE.beat()
    return outcome


def _comparisons(program: Programs, place: Place, shards: Shards) -> list[Comparison]:
    operation = OPERATIONS[place.case.op]
    if program.is_local:
        return operation.compare_alone(place, shards)
    return operation.compare(place, shards, num_roundings=program.num_roundings(place.case.num_ranks))


def summarize(outcomes: list[Outcome]) -> RankCheck:
    """Summary of several results; at least one must be of normal data."""
    comparisons = [one for outcome in outcomes for one in outcome.comparisons]
    exact = [outcome.num_different == 0 for outcome in outcomes if outcome.num_different is not None]
    return RankCheck(
        passed=not any(outcome.is_wrong for outcome in outcomes),
        calls=len(outcomes),
        num_elements=sum(outcome.num_elements for outcome in outcomes),
        num_wrong=sum(outcome.num_wrong for outcome in outcomes),
        # np.max keeps a NaN; Python's max may lose it.
        max_error=float(np.max([c.max_error for c in comparisons])),
        relative_error=float(np.max([c.relative_error for c in comparisons])),
        relative_tolerance=float(np.max([c.relative_tolerance for c in comparisons])),
        integers_exact=all(exact) if exact else None,
    )


def _plant(fault: Fault, shard: jax.Array, case: Case) -> jax.Array:
    """Damage the result as a broken kernel would."""
    if fault is Fault.wrong_element:
        return shard.at[-1, -1].add(jnp.asarray(case.k, shard.dtype))
    # A gathered result has a block for each rank: shift by one block. A scattered result is one block: swap its halves.
    size = shard.size // 2 if shard.shape[0] <= case.m_shard else case.m_shard * shard.shape[1]
    return jnp.roll(shard.reshape(-1), size).reshape(shard.shape)
