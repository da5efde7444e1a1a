"""Schedules of the ring all-gather as plain integer functions: the flat ring and the two-level ring over hosts.

Algorithm: the JAX tutorial, "Collective matrix multiplication"
(https://docs.jax.dev/en/latest/pallas/gpu/collective_matmul.html). In step ``i`` of ``D``, rank ``d`` multiplies shard
``(d + i) % D`` and meanwhile sends it to rank ``(d - 1) % D``, which needs it in step ``i + 1``. The functions take
Python integers or traced ones, so kernels, portable code and tests share one schedule.

The flat ring crosses between hosts in every step, at one rank of each host. ``TwoLevelRing`` crosses at every device,
once per revolution of the ring within the host.
"""

from __future__ import annotations

import dataclasses
import itertools

from cmkernel.integers import Int


def source_shard(rank: Int, step: Int, num_ranks: int) -> Int:
    """Index of the lhs shard that ``rank`` multiplies in ``step``."""
    return (rank + step) % num_ranks


def send_rank(rank: Int, num_ranks: int) -> Int:
    """Neighbour that ``rank`` sends to, in every step."""
    return (rank + (num_ranks - 1)) % num_ranks


def receive_rank(rank: Int, num_ranks: int) -> Int:
    """Neighbour that ``rank`` receives from, in every step."""
    return (rank + 1) % num_ranks


def num_scratch_slots(num_ranks: int) -> int:
    """Receive slots of a rank: one per shard but its own, so that a call never writes a slot twice."""
    return num_ranks - 1


def read_slot(step: Int) -> Int:
    """Scratch slot that holds the shard of ``step``, for ``step >= 1``: step 0 reads the rank's own shard."""
    return step - 1


def write_slot(step: Int) -> Int:
    """Scratch slot of the receiving neighbour for the shard sent during ``step``."""
    return step


def sends_in(step: Int, num_ranks: int) -> bool:
    """True if a rank forwards its shard in ``step``: all steps but the last, when every rank has seen it."""
    return step < num_ranks - 1


def pieces(num_rows: int, num_chunks: int) -> tuple[tuple[int, int], ...]:
    """(first row, one past the last) of at most ``num_chunks`` pieces of a shard, as even as possible, none empty."""
    num_chunks = min(num_chunks, num_rows)
    bounds = [num_rows * chunk // num_chunks for chunk in range(num_chunks + 1)]
    return tuple(itertools.pairwise(bounds))


def permutation(num_ranks: int) -> tuple[tuple[int, int], ...]:
    """(source, destination) pairs of one step, as ``lax.ppermute`` takes them."""
    return tuple((rank, send_rank(rank, num_ranks)) for rank in range(num_ranks))


@dataclasses.dataclass(frozen=True)
class TwoLevelRing:
    """Ring over ``num_hosts`` hosts with ``devices_per_host`` ranks each, numbered host by host.

    In outer step ``o`` a host multiplies the shards of the host ``o`` places further on. Its ranks start with the
    shards of their twins there and pass them along the host's own ring: in inner step ``i`` rank ``(h, d)`` multiplies
    shard ``((h + o) % num_hosts, (d + i) % devices_per_host)`` and sends it to ``(h, d - 1)``, which multiplies it in
    inner step ``i + 1``. The shard of inner step 0 also goes to the twin ``(h - 1, d)``, which needs it in outer step
    ``o + 1``: one shard has a whole revolution to cross. With one host, or one device per host, this is the flat ring.

    Raises:
      ValueError: ``num_hosts`` or ``devices_per_host`` is below 1.
    """

    num_hosts: int
    devices_per_host: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")

    @property
    def num_ranks(self) -> int:
        """Ranks on all hosts, which is also the number of steps."""
        return self.num_hosts * self.devices_per_host

    def step(self, outer: int, inner: int) -> int:
        """Number of a step among all: argument of ``read_slot``, and position of its shard among those received."""
        return outer * self.devices_per_host + inner

    def source_shard(self, rank: Int, outer: int, inner: int) -> Int:
        """Index of the lhs shard that ``rank`` multiplies in step ``(outer, inner)``."""
        host, device = rank // self.devices_per_host, rank % self.devices_per_host
        return (host + outer) % self.num_hosts * self.devices_per_host + (device + inner) % self.devices_per_host

    def inner_send_rank(self, rank: Int) -> Int:
        """Neighbour within the host that ``rank`` sends to, in every step that ``sends_within``."""
        device = rank % self.devices_per_host
        return rank - device + send_rank(device, self.devices_per_host)

    def outer_send_rank(self, rank: Int) -> Int:
        """Twin in the neighbouring host that ``rank`` sends to, in every step that ``sends_across``."""
        return (rank + (self.num_ranks - self.devices_per_host)) % self.num_ranks

    def sends_within(self, inner: int) -> bool:
        """True if a rank forwards its shard within the host: all steps of a revolution but the last."""
        return sends_in(inner, self.devices_per_host)

    def sends_across(self, outer: int, inner: int) -> bool:
        """True if a rank forwards its shard to its twin: at the start of each revolution but the last."""
        return inner == 0 and sends_in(outer, self.num_hosts)

    def inner_write_slot(self, outer: int, inner: int) -> int:
        """Scratch slot of the neighbour within the host for the shard sent in this step."""
        return read_slot(self.step(outer, inner + 1))

    def outer_write_slot(self, outer: int) -> int:
        """Scratch slot of the twin for the shard sent in this outer step."""
        return read_slot(self.step(outer + 1, 0))

    def inner_permutation(self) -> tuple[tuple[int, int], ...]:
        """(source, destination) pairs within the hosts, over all ranks."""
        return tuple((rank, self.inner_send_rank(rank)) for rank in range(self.num_ranks))

    def outer_permutation(self) -> tuple[tuple[int, int], ...]:
        """(source, destination) pairs between twins, over all ranks."""
        return tuple((rank, self.outer_send_rank(rank)) for rank in range(self.num_ranks))
