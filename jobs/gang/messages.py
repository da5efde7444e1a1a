"""Messages between a rank and the driver, as plain data without jax or Ray."""

from __future__ import annotations

import dataclasses

from jobs.health.domain import nvlink_domain
from jobs.health.facts import GpuFacts, HostName


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place(HostName):
    """Location of an actor before it becomes a rank."""

    node_id: str
    pid: int
    gpu_ids: tuple[str, ...]
    """Indices or UUIDs of the GPUs that Ray assigned; empty for a CPU rank."""
    stderr_path: str
    """File on that host with the process's standard error."""
    boot_id: str = ""
    """Boot id of the machine; its containers and raylets share it."""
    oom_kills: int | None = None
    """Processes that the host's kernel had killed for lack of memory when the actor answered; ``None`` if unknown."""
    gpu: GpuFacts | None = None
    """Facts of the actor's GPU before jax uses it; ``None`` for a CPU rank or without NVML."""

    @property
    def nvlink_domain(self) -> str:
        """Name of the domain; ranks that share it reach each other's memory over NVLink."""
        return nvlink_domain(host=self.host, boot_id=self.boot_id, gpu=self.gpu)


NOWHERE = Place(node_id="", host="", ip="", pid=0, gpu_ids=(), resolved_ip=None, stderr_path="")
"""Place of an actor that hasn't answered yet."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """Parameters with which a rank joins its gang."""

    rank: int
    num_ranks: int
    coordinator: str
    """``ip:port`` of jax.distributed on rank 0's host."""
    timeout_s: float
    """Seconds for all ranks to connect to it."""
    heartbeat_timeout_s: int
    gpu_memory_fraction: float
    session: str
    """``module:Class`` whose methods the driver calls; created without arguments after jax.distributed is up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Progress of a rank while a step runs or is stuck."""

    idle_s: float
    """Seconds since its last progress."""
    is_compiling: bool
    step: str | None
    """Running step; ``None`` between the driver's calls."""
    iteration: int
    """Number of beats in this step."""
    finished_case: str | None
    stacks: str
    """Stacks of the threads that run more than Ray's own code."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """An exception in a rank's code, as data: Ray's own wrapping loses exceptions that can't be pickled."""

    type_name: str
    text: str
    traceback_tail: str
    origin: str
    """Module of the innermost frame."""
    pickled: bytes | None = None
    """The pickled exception, if it is a ``JobError``."""
