"""Members of a gang: its ranks, as the driver and the records see them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One rank of a gang, once that is set up."""

    rank: int
    host: str
    ip: str
    node_id: str
    pid: int
    device_kind: str
    gpu_uuid: str | None
    """``None`` for a CPU rank."""
    gpu_index: int | None
    """Index of the GPU on its host, by NVML."""
    driver_version: str | None
    """Version of the NVIDIA driver."""
    versions: dict[str, str]
    """Versions of Python, jax, jaxlib, ray and numpy; on GPUs also of the loaded NCCL library."""
    stderr_path: str
    nvlink_domain: str = ""
    """Name of the NVLink domain; its ranks reach each other's memory over NVLink."""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (pid {self.pid})"
