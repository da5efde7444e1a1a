"""One rank of a gang, as the driver and the records know it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One rank of a gang that is set up."""

    rank: int
    host: str
    ip: str
    node_id: str
    pid: int
    device_kind: str
    gpu_uuid: str | None
    """``None`` for a CPU rank."""
    gpu_index: int | None
    """NVML's index of the GPU on its host."""
    driver_version: str | None
    """Of the NVIDIA driver."""
    versions: dict[str, str]
    """Of Python, jax, jaxlib, ray and numpy; on GPUs also of NCCL, as the loaded library says."""
    stderr_path: str
    nvlink_domain: str = ""
    """Ranks with the same one reach each other's memory over NVLink."""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (pid {self.pid})"
