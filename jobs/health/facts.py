"""What a host and its GPUs say about themselves, as plain data. ``None`` stands for what they don't tell."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int
    """On the machine itself, also where this was asked inside a container."""
    used_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemappedRows:
    """Rows of GPU memory that were replaced by spare ones."""

    correctable: int
    uncorrectable: int
    pending: bool
    """A row waits for the GPU's reset to be replaced."""
    failed: bool
    """A row could not be replaced."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NvLinks:
    """The NVLink connections of one GPU."""

    num_links: int
    num_active: int
    errors: dict[str, int]
    """Counts over all links since the driver was loaded, by kind; a kind that isn't counted is left out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fabric:
    """What the fabric manager has told a GPU: GPUs of one cluster and one clique reach each other over NVLink."""

    state: str
    """``completed``, ``in progress``, ``not started`` or ``not supported``."""
    error: str | None
    """Why a completed registration failed."""
    cluster_uuid: str
    """All zeros inside a host whose switches end there."""
    clique_id: int
    is_degraded: bool | None
    """Whether it runs with less bandwidth than it has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU, as NVML tells."""

    index: int
    """NVML's, which is the order of the PCI bus."""
    uuid: str
    name: str | None = None
    compute_capability: str | None = None
    """``9.0`` for Hopper."""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    """By processes; what the driver reserves for itself isn't part of it."""
    processes: tuple[GpuProcess, ...] | None = None
    ecc_enabled: bool | None = None
    ecc_volatile: int | None = None
    """Uncorrected errors of memory since the driver was loaded or the GPU reset."""
    ecc_aggregate: int | None = None
    """The same over the GPU's life."""
    remapped_rows: RemappedRows | None = None
    nvlinks: NvLinks | None = None
    fabric: Fabric | None = None
    peers: dict[int, str] | None = None
    """By index of each other GPU of the host: ``ok``, or why one can't access the other's memory."""
    is_mig: bool | None = None
    """Whether it is cut into instances."""
    unreadable: dict[str, str] = dataclasses.field(default_factory=dict)
    """Why a fact above is ``None``, by its name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFacts:
    """One host, as a process there sees it."""

    host: str
    ip: str
    """The node's address as Ray knows it."""
    resolved_ip: str | None
    """What the host's own name resolves to there; ``None``: nothing."""
    boot_id: str
    """The same for all processes of a machine, containers included, until it boots again; empty: not told."""
    versions: dict[str, str]
    """Of Python and of packages; ``none`` for one that isn't installed."""
    shm_bytes: int | None
    """Size of /dev/shm."""
    memlock_bytes: int | None
    """What a process may lock in memory; ``None``: any amount."""
    driver_version: str | None = None
    """Of the NVIDIA driver."""
    cuda_version: str | None = None
    """The newest CUDA that the driver runs."""
    gpus: tuple[GpuFacts, ...] = ()
    nvml_error: str | None = None
    """Why NVML, which is there, tells nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Xid:
    """An error that the NVIDIA driver reported while somebody listened."""

    gpu_uuid: str
    number: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """What went over one link, or why nothing did."""

    link: str
    """Both ends."""
    bytes_per_s: float | None
    """In each direction."""
    error: str | None = None
