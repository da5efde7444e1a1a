"""The schedule of the ring all-gather, as plain integer functions.

Algorithm of the jax documentation, "Collective matrix multiplication" (Pallas:Mosaic GPU): in step ``i`` of ``D``, rank
``d`` multiplies shard ``(d + i) % D`` and meanwhile sends it to rank ``(d - 1) % D``, which needs it in step ``i + 1``.
The functions take Python integers or traced ones, so kernels, portable code and tests share one schedule.
"""

from __future__ import annotations

import dataclasses
from typing import Any

Int = Any  # int, or a traced int32 scalar


def source_shard(rank: Int, step: Int, num_ranks: int) -> Int:
    """Index of the lhs shard that ``rank`` multiplies in ``step``."""
    return (rank + step) % num_ranks


def send_rank(rank: Int, num_ranks: int) -> Int:
    """The neighbour that ``rank`` sends to, in every step."""
    return (rank + (num_ranks - 1)) % num_ranks


def receive_rank(rank: Int, num_ranks: int) -> Int:
    """The neighbour that ``rank`` receives from, in every step."""
    return (rank + 1) % num_ranks


def num_scratch_slots(num_ranks: int) -> int:
    """Receive slots of a rank: one for each shard but its own, so that no slot is ever written twice in a call."""
    return num_ranks - 1


def read_slot(step: Int) -> Int:
    """Scratch slot that holds the shard of ``step``; only for ``step >= 1``, as step 0 reads the rank's own shard."""
    return step - 1


def write_slot(step: Int) -> Int:
    """Scratch slot of the receiving neighbour that the shard sent during ``step`` lands in."""
    return step


def sends_in(step: Int, num_ranks: int) -> bool:
    """Whether a rank forwards its shard in ``step``: always but in the last step, when every rank has seen it."""
    return step < num_ranks - 1


@dataclasses.dataclass(frozen=True)
class RingStep:
    """What one rank does in one step. A slot or rank of ``None``: nothing is read, or nothing is sent."""

    rank: int
    step: int
    source_shard: int
    read_slot: int | None
    send_rank: int | None
    write_slot: int | None


def schedule(rank: int, num_ranks: int) -> tuple[RingStep, ...]:
    """All steps of ``rank``, in order.

    Raises:
      ValueError: ``num_ranks`` is below 1 or ``rank`` is none of ``0 .. num_ranks - 1``.
    """
    if num_ranks < 1 or not 0 <= rank < num_ranks:
        raise ValueError(f"{rank=} must be in 0 .. num_ranks - 1 for {num_ranks=}")
    return tuple(
        RingStep(
            rank=rank,
            step=step,
            source_shard=source_shard(rank, step, num_ranks),
            read_slot=read_slot(step) if step > 0 else None,
            send_rank=send_rank(rank, num_ranks) if sends_in(step, num_ranks) else None,
            write_slot=write_slot(step) if sends_in(step, num_ranks) else None,
        )
        for step in range(num_ranks)
    )


def permutation(num_ranks: int) -> tuple[tuple[int, int], ...]:
    """(source, destination) pairs of one step, the form ``lax.ppermute`` takes."""
    return tuple((rank, send_rank(rank, num_ranks)) for rank in range(num_ranks))
