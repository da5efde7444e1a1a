"""The schedules of the ring all-gather, as plain integer functions: the flat ring, and the two-level ring of hosts.

Algorithm of the jax documentation, "Collective matrix multiplication" (Pallas:Mosaic GPU): in step ``i`` of ``D``, rank
``d`` multiplies shard ``(d + i) % D`` and meanwhile sends it to rank ``(d - 1) % D``, which needs it in step ``i + 1``.
The functions take Python integers or traced ones, so kernels, portable code and tests share one schedule.

The flat ring crosses from host to host at one place of each host, in every step. ``TwoLevelRing`` crosses at every
device, once in a revolution of the ring within the host.
"""

from __future__ import annotations

import dataclasses
import itertools
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


def pieces(num_rows: int, num_chunks: int) -> tuple[tuple[int, int], ...]:
    """(first row, one past the last) of each of ``num_chunks`` pieces of a shard, as even as possible, none empty."""
    num_chunks = min(num_chunks, num_rows)
    bounds = [num_rows * chunk // num_chunks for chunk in range(num_chunks + 1)]
    return tuple(itertools.pairwise(bounds))


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


@dataclasses.dataclass(frozen=True)
class TwoLevelRing:
    """The ring over ``num_hosts`` hosts with ``devices_per_host`` ranks each, numbered host by host.

    In outer step ``o`` a host multiplies the shards of the host ``o`` places further on. Its ranks begin with those of
    their twins there and pass them on along the host's own ring: in inner step ``i`` rank ``(h, d)`` multiplies shard
    ``((h + o) % num_hosts, (d + i) % devices_per_host)`` and sends it to ``(h, d - 1)``, which multiplies it in inner
    step ``i + 1``. The shard of inner step 0 goes to the twin ``(h - 1, d)`` as well, which needs it in outer step
    ``o + 1``: a whole revolution for one shard. With one host, or one device a host, this is the flat ring.

    Raises:
      ValueError: one of the two is below 1.
    """

    num_hosts: int
    devices_per_host: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")

    @property
    def num_ranks(self) -> int:
        """Over all hosts, which is also the number of steps."""
        return self.num_hosts * self.devices_per_host

    def step(self, outer: int, inner: int) -> int:
        """Number of a step among all: what ``read_slot`` takes, and the place of its shard among those received."""
        return outer * self.devices_per_host + inner

    def source_shard(self, rank: Int, outer: int, inner: int) -> Int:
        """Index of the lhs shard that ``rank`` multiplies in step ``(outer, inner)``."""
        host, device = rank // self.devices_per_host, rank % self.devices_per_host
        return (host + outer) % self.num_hosts * self.devices_per_host + (device + inner) % self.devices_per_host

    def inner_send_rank(self, rank: Int) -> Int:
        """The neighbour within the host that ``rank`` sends to, in every step that ``sends_within``."""
        device = rank % self.devices_per_host
        return rank - device + send_rank(device, self.devices_per_host)

    def outer_send_rank(self, rank: Int) -> Int:
        """The twin in the neighbouring host that ``rank`` sends to, in every step that ``sends_across``."""
        return (rank + (self.num_ranks - self.devices_per_host)) % self.num_ranks

    def sends_within(self, inner: int) -> bool:
        """Whether a rank forwards its shard within the host: always but in the last step of a revolution."""
        return sends_in(inner, self.devices_per_host)

    def sends_across(self, outer: int, inner: int) -> bool:
        """Whether a rank forwards its shard to its twin: at the start of each revolution but the last."""
        return inner == 0 and sends_in(outer, self.num_hosts)

    def inner_write_slot(self, outer: int, inner: int) -> int:
        """Scratch slot of the neighbour within the host that the shard sent in this step lands in."""
        return read_slot(self.step(outer, inner + 1))

    def outer_write_slot(self, outer: int) -> int:
        """Scratch slot of the twin that the shard sent in this outer step lands in."""
        return read_slot(self.step(outer + 1, 0))

    def inner_permutation(self) -> tuple[tuple[int, int], ...]:
        """(source, destination) pairs within the hosts, over all ranks."""
        return tuple((rank, self.inner_send_rank(rank)) for rank in range(self.num_ranks))

    def outer_permutation(self) -> tuple[tuple[int, int], ...]:
        """(source, destination) pairs between twins, over all ranks."""
        return tuple((rank, self.outer_send_rank(rank)) for rank in range(self.num_ranks))
