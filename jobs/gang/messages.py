"""What a rank tells the driver, as plain data: no jax and no Ray here."""

from __future__ import annotations

import dataclasses

from jobs.health.domain import nvlink_domain
from jobs.health.facts import GpuFacts


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an actor landed, before it is a rank."""

    node_id: str
    host: str
    ip: str
    """The node's address as Ray knows it."""
    pid: int
    gpu_ids: tuple[str, ...]
    """What Ray gave the actor: indices or UUIDs; empty for a CPU rank."""
    resolved_ip: str | None
    """What the host's own name resolves to there; ``None``: nothing."""
    stderr_path: str
    """File on that host with what the process prints."""
    boot_id: str = ""
    """Of the machine; containers and several raylets on it share it."""
    gpu: GpuFacts | None = None
    """What NVML says of the actor's GPU before jax uses it; ``None`` for a CPU rank."""

    @property
    def nvlink_domain(self) -> str:
        """Ranks with the same one reach each other's memory over NVLink."""
        return nvlink_domain(host=self.host, boot_id=self.boot_id, gpu=self.gpu)


NOWHERE = Place(node_id="", host="", ip="", pid=0, gpu_ids=(), resolved_ip=None, stderr_path="")
"""Of an actor that hasn't answered yet."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """What a rank needs to join its gang."""

    rank: int
    num_ranks: int
    coordinator: str
    """``ip:port`` of jax.distributed on rank 0's host."""
    timeout_s: float
    """Limit for all ranks to meet there."""
    heartbeat_timeout_s: int
    gpu_memory_fraction: float
    session: str
    """``module:Class`` whose methods the driver calls; it is made without arguments, after jax.distributed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a rank says about itself while a step runs, or is stuck."""

    idle_s: float
    """Seconds since it last got anywhere."""
    is_compiling: bool
    step: str | None
    """``None``: between the driver's calls."""
    iteration: int
    """How often it got somewhere in this step."""
    finished_case: str | None
    stacks: str
    """Of all threads that run more than Ray's own code."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """An exception that a rank's code raised, carried as data: Ray's own wrapping loses what can't be pickled."""

    type_name: str
    text: str
    traceback_tail: str
    origin: str
    """Module of the innermost frame."""
    pickled: bytes | None = None
    """The exception itself, where it is a JobError."""
