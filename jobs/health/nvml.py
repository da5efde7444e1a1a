"""Facts about this host's GPUs, read through NVML; an unanswered query becomes ``None``, with the reason."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pynvml

from jobs.health.facts import Fabric, GpuFacts, GpuProcess, NvLinks, RemappedRows

T = TypeVar("T")

_GPU_NAME = re.compile(r"\d+|(GPU|MIG)-.+")
_FABRIC_STATES = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED: "not supported",
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "not started",
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "in progress",
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED: "completed",
}
_P2P_REASONS = {
    pynvml.NVML_P2P_STATUS_OK: "ok",
    pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED: "the chipset doesn't support it",
    pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED: "the GPU doesn't support it",
    pynvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "the PCI topology doesn't support it",
    pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY: "disabled by an option of the driver",
    pynvml.NVML_P2P_STATUS_NOT_SUPPORTED: "not supported",
}
_LINK_ERRORS = {
    "replay": pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    "recovery": pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    "CRC flit": pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
}


def visible_gpus() -> list[Any]:
    """NVML handles of the GPUs in CUDA_VISIBLE_DEVICES, which NVML itself ignores.

    Raises:
      pynvml.NVMLError: NVML is missing or doesn't start.
    """
    pynvml.nvmlInit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    # CUDA ignores everything from the first invalid name on.
    names = itertools.takewhile(_GPU_NAME.fullmatch, (part.strip() for part in visible.split(",")))
    return [_handle(name) for name in names]


def visible_gpu() -> Any:
    """NVML handle of the first visible GPU; a rank has only one."""
    return visible_gpus()[0]


def gpu_facts(handle: Any, peers: Sequence[Any] = ()) -> GpuFacts:
    """Facts about the GPU with this handle, including its access to the memory of ``peers``."""
    unreadable: dict[str, str] = {}

    def read(name: str, function: Callable[[Any], T]) -> T | None:
        try:
            return function(handle)
        except pynvml.NVMLError as error:
            unreadable[name] = str(error)
            return None

    memory = read("memory_used_bytes", _memory)
    return GpuFacts(
        index=pynvml.nvmlDeviceGetIndex(handle),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=read("name", pynvml.nvmlDeviceGetName),
        compute_capability=read("compute_capability", _compute_capability),
        memory_total_bytes=memory and memory[0],
        memory_used_bytes=memory and memory[1],
        processes=read("processes", _processes),
        ecc_enabled=read("ecc_enabled", lambda gpu: bool(pynvml.nvmlDeviceGetEccMode(gpu)[0])),
        ecc_volatile=read("ecc_volatile", lambda gpu: _uncorrected(gpu, pynvml.NVML_VOLATILE_ECC)),
        ecc_aggregate=read("ecc_aggregate", lambda gpu: _uncorrected(gpu, pynvml.NVML_AGGREGATE_ECC)),
        remapped_rows=read("remapped_rows", _remapped_rows),
        nvlinks=read("nvlinks", _nvlinks),
        fabric=read("fabric", _fabric),
        peers=read("peers", lambda gpu: {pynvml.nvmlDeviceGetIndex(peer): _access(gpu, peer) for peer in peers}),
        is_mig=read("is_mig", lambda gpu: bool(pynvml.nvmlDeviceGetMigMode(gpu)[0])),
        unreadable=unreadable,
    )


def num_active_links(handle: Any) -> int:
    """Number of active NVLink connections."""
    try:
        return sum(_link_states(handle))
    except pynvml.NVMLError:
        return 0


def used_bytes(handle: Any) -> int | None:
    """Memory that processes use; ``None`` if unknown."""
    try:
        return _memory(handle)[1]
    except pynvml.NVMLError:
        return None


def _handle(name: str) -> Any:
    if name.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(name)
    return pynvml.nvmlDeviceGetHandleByIndex(int(name))


def _memory(handle: Any) -> tuple[int, int]:
    """Total and used bytes."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        # Drivers before 510 count their own reserve as used.
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return memory.total, memory.used


def _compute_capability(handle: Any) -> str:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


def _processes(handle: Any) -> tuple[GpuProcess, ...]:
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    return tuple(GpuProcess(pid=process.pid, used_bytes=process.usedGpuMemory) for process in processes)


def _uncorrected(handle: Any, counter: int) -> int:
    return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter))


def _remapped_rows(handle: Any) -> RemappedRows:
    correctable, uncorrectable, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return RemappedRows(
        correctable=correctable, uncorrectable=uncorrectable, pending=bool(pending), failed=bool(failed)
    )


def _link_states(handle: Any) -> list[bool]:
    """Activity of each link of the GPU; raises ``NVMLError`` if it has none."""
    states: list[bool] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED)
        except pynvml.NVMLError:
            if not states:
                raise
            break
    return states


def _nvlinks(handle: Any) -> NvLinks:
    states = _link_states(handle)
    errors: dict[str, int] = {}
    for name, counter in _LINK_ERRORS.items():
        for link in (link for link, is_active in enumerate(states) if is_active):
            try:
                count = pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter)
            except pynvml.NVMLError:
                break
            errors[name] = errors.get(name, 0) + count
    return NvLinks(num_links=len(states), num_active=sum(states), errors=errors)


def _fabric(handle: Any) -> Fabric:
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    # NVML declares a byte and padding, pynvml a whole word.
    state = info.state & 0xFF
    degraded = info.healthMask >> pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW
    degraded &= pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW
    failed = state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status != pynvml.NVML_SUCCESS
    return Fabric(
        state=_FABRIC_STATES.get(state, f"unknown ({state})"),
        error=str(pynvml.NVMLError(info.status)) if failed else None,
        cluster_uuid=str(uuid.UUID(bytes=bytes(info.clusterUuid))),
        clique_id=info.cliqueId,
        is_degraded={
            pynvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE: True,
            pynvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE: False,
        }.get(degraded),
    )


def _access(handle: Any, peer: Any) -> str:
    # pynvml defines ..._INDEX_READ as a tuple by mistake.
    status = pynvml.nvmlDeviceGetP2PStatus(handle, peer, pynvml.NVML_P2P_CAPS_INDEX_WRITE)
    return _P2P_REASONS.get(status, "unknown")
