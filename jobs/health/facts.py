"""Facts about a host and its GPUs, as plain data; ``None`` stands for an unknown fact."""

from __future__ import annotations

import dataclasses

EXAMINATION_NAME = "doctor.json"
"""File of a run directory with what the doctor found."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A compute process on a GPU."""

    pid: int
    """Process id on the machine itself, even if read inside a container."""
    used_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemappedRows:
    """Rows of GPU memory that the GPU replaced by spare ones."""

    correctable: int
    uncorrectable: int
    pending: bool
    """A row will be replaced at the next reset of the GPU."""
    failed: bool
    """Replacing a row failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NvLinks:
    """The NVLink connections of one GPU."""

    num_links: int
    num_active: int
    errors: dict[str, int]
    """Counts by kind, over all links since the driver was loaded; kinds that NVML doesn't count are absent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fabric:
    """A GPU's registration with the fabric manager; GPUs of one cluster and clique reach each other over NVLink."""

    state: str
    """``completed``, ``in progress``, ``not started`` or ``not supported``."""
    error: str | None
    """Reason why a completed registration failed; ``None`` if it succeeded."""
    cluster_uuid: str
    """UUID of the cluster; all zeros if the NVLink switches connect one host only."""
    clique_id: int
    is_degraded: bool | None
    """The fabric runs with reduced bandwidth."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU, as NVML describes it."""

    index: int
    """NVML's index, in the order of the PCI bus."""
    uuid: str
    name: str | None = None
    compute_capability: str | None = None
    """``9.0`` for Hopper."""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    """Memory that processes use, without the driver's own reserve."""
    processes: tuple[GpuProcess, ...] | None = None
    ecc_enabled: bool | None = None
    ecc_volatile: int | None = None
    """Uncorrected memory errors since the driver was loaded or the GPU was reset."""
    ecc_aggregate: int | None = None
    """Uncorrected memory errors over the GPU's life."""
    remapped_rows: RemappedRows | None = None
    nvlinks: NvLinks | None = None
    fabric: Fabric | None = None
    peers: dict[int, str] | None = None
    """By index of each other GPU on the host: ``ok``, or the reason why its memory can't be accessed."""
    is_mig: bool | None = None
    """MIG divides the GPU into instances."""
    unreadable: dict[str, str] = dataclasses.field(default_factory=dict)
    """By name of a fact above: the reason why it is ``None``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostName:
    """The name of a host, and what it resolves to there."""

    host: str
    ip: str
    """Address of the node in Ray."""
    resolved_ip: str | None
    """Address that the host resolves its own name to; ``None`` if it can't."""
    owns_resolved_ip: bool = True
    """An interface of the host has that address."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFacts(HostName):
    """One host, as a process on it sees it."""

    boot_id: str
    """Shared by all processes of a machine, containers included, until it reboots; empty if unknown."""
    versions: dict[str, str]
    """Versions of Python and packages; ``none`` for a package that isn't installed."""
    shm_bytes: int | None
    """Size of /dev/shm."""
    memlock_bytes: int | None
    """Memory that a process may lock; ``None`` is unlimited."""
    driver_version: str | None = None
    """Version of the NVIDIA driver."""
    cuda_version: str | None = None
    """Newest CUDA that the driver runs."""
    gpus: tuple[GpuFacts, ...] = ()
    nvml_error: str | None = None
    """Error of an NVML that is installed but fails."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Xid:
    """An error that the NVIDIA driver reported while the examiner listened."""

    gpu_uuid: str
    number: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Bandwidth of one link, or the reason why it couldn't be measured."""

    link: str
    """Names of both ends."""
    bytes_per_s: float | None
    """Bytes per second in each direction."""
    error: str | None = None
