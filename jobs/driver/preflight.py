"""Preflight: refuse settings that can't run on the cluster, before any GPU is reserved.

These checks need no device. The ranks check the device and NCCL themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from cmkernel.config import SimpleKernelConfig, validate_shape
from cmkernel.performance_model import simple_heuristic_config
from jobs.config.choices import Fault, Implementation
from jobs.config.implementations import IMPLEMENTATIONS, Hardware
from jobs.config.schema import KernelSettings, Settings
from jobs.errors import UsageError
from jobs.gang.cluster import Cluster
from jobs.records.case import Case
from jobs.records.work import least_bytes

# Ray's names of the accelerators with compute capability 9.0.
HOPPER = ("H100", "H200", "H20", "H800", "GH200")
_INSTEAD = "use kernel=ppermute, or kernel=auto to take what can run"


def refuse_unsupported(settings: Settings, cases: Sequence[Case], cluster: Cluster) -> None:
    """Raise ``UsageError`` if the settings can't run on these cases or this cluster."""
    if settings.check.fault is Fault.swapped_shards and cases[0].num_ranks == 1:
        raise UsageError("check.fault=swapped_shards needs at least 2 ranks: one shard can't be swapped")
    if not cluster.on_gpus:
        _refuse_memory(cases, cluster)
    for name in settings.timing.baselines:
        _refuse_machine(f"timing.baselines={name}", name, cluster, "leave it out")
    implementation = settings.kernel.implementation
    if implementation in (Implementation.mosaic_gpu, Implementation.mosaic_gpu_simple):
        option = f"kernel.implementation={implementation.value}"
        _refuse_machine(option, implementation.value, cluster, _INSTEAD)
        for case in cases:
            _refuse_case(option, settings.kernel, case)


def _refuse_memory(cases: Sequence[Case], cluster: Cluster) -> None:
    """Raise ``UsageError`` if a case needs more memory than the hosts had free: the kernel would kill its ranks."""
    free = [node.memory_bytes for node in cluster.nodes if node.memory_bytes is not None]
    if len(free) < len(cluster.nodes):
        return
    for case in cases:
        needed = least_bytes(case)
        if needed > max(free) or needed * case.num_ranks > sum(free):
            raise UsageError(
                f"problem.m_shard={case.m_shard} problem.k={case.k} problem.n_shard={case.n_shard}: {case} needs at "
                f"least {_gib(needed)} of memory for each rank, {_gib(needed * case.num_ranks)} for all, and there are "
                f"{_gib(sum(free))}; use smaller sizes or fewer ranks"
            )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"


def _refuse_case(option: str, kernel: KernelSettings, case: Case) -> None:
    """Raise ``UsageError`` if a kernel can't run on ``case`` on any machine."""
    if case.dtype == "float32":
        raise UsageError(f"{option} needs problem.dtype=bfloat16 or float16, not {case.dtype}; {_INSTEAD}")
    if kernel.implementation is Implementation.mosaic_gpu:
        return  # It takes any shape.
    sizes = {"m_shard": case.m_shard, "k": case.k, "n_shard": case.n_shard}
    try:
        if kernel.config:
            validate_shape(SimpleKernelConfig(**kernel.config), **sizes)
        else:
            simple_heuristic_config(**sizes)
    except ValueError as error:
        raise UsageError(f"{option} on {case}: {error}") from error


def _refuse_machine(option: str, implementation: str, cluster: Cluster, instead: str) -> None:
    """Raise ``UsageError`` if the cluster's hardware can't run ``implementation`` on any case."""
    hardware = IMPLEMENTATIONS[implementation].hardware
    if hardware > Hardware.any and not cluster.on_gpus:
        needed = "Hopper GPUs (compute capability 9.0)" if hardware is Hardware.hopper else "GPUs"
        raise UsageError(f"{option} needs {needed}, but the cluster has no GPU; {instead}")
    for node in cluster.nodes:
        is_other = node.num_gpus and node.accelerator and not node.accelerator.upper().startswith(HOPPER)
        if hardware is Hardware.hopper and is_other:
            raise UsageError(f"{option} needs Hopper GPUs, but host {node.host} has {node.accelerator}; {instead}")
