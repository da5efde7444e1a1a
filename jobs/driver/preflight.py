"""What can be told about a job before any GPU is reserved."""

from __future__ import annotations

from collections.abc import Sequence

from cmkernel.config import SimpleKernelConfig, validate_shape
from cmkernel.performance_model import simple_heuristic_config
from jobs.config.schema import Fault, Implementation, Settings, kernel_config
from jobs.config.tuned_table import read_table
from jobs.errors import UsageError
from jobs.gang.cluster import Cluster
from jobs.records.row import Case

# Ray's names of the accelerators with compute capability 9.0.
HOPPER = ("H100", "H200", "H20", "H800", "GH200")
_HOPPER_ONLY = ("mosaic_gpu", "mosaic_gpu_simple", "jax_ring")
_GPUS_ONLY = (*_HOPPER_ONLY, "local_cublas", "xla_cublas", "torch_fused")


def refuse_unsupported(settings: Settings, cases: Sequence[Case], cluster: Cluster) -> None:
    """Raise ``UsageError`` where what the config asks for can't run on these cases or this cluster.

    The ranks check again, by what they find in the device and in NCCL; this is the part that needs no device.
    """
    read_table("kernel.table", settings.kernel.table)
    if settings.check.fault is Fault.swapped_shards and cases[0].num_ranks == 1:
        raise UsageError("check.fault=swapped_shards needs at least 2 ranks: one shard can't be swapped")
    for name in settings.timing.baselines:
        _refuse_machine(f"timing.baselines={name}", name, cluster, "leave it out")
    implementation = settings.kernel.implementation
    if implementation not in (Implementation.mosaic_gpu, Implementation.mosaic_gpu_simple):
        return
    named = f"kernel.implementation={implementation.value}"
    instead = "use kernel=ppermute, or kernel=auto to take what can run"
    _refuse_machine(named, implementation.value, cluster, instead)
    options = kernel_config(settings.kernel)
    for case in cases:
        if case.dtype == "float32":
            raise UsageError(f"{named} needs problem.dtype=bfloat16 or float16, not {case.dtype}; {instead}")
        if implementation is Implementation.mosaic_gpu:
            continue  # It takes any shape.
        sizes = {"m_shard": case.m_shard, "k": case.k, "n_shard": case.n_shard}
        try:
            validate_shape(SimpleKernelConfig(**options), **sizes) if options else simple_heuristic_config(**sizes)
        except ValueError as error:
            raise UsageError(f"{named} on {case}: {error}") from error


def _refuse_machine(named: str, implementation: str, cluster: Cluster, instead: str) -> None:
    """Raise ``UsageError`` where the cluster's hardware can't run ``implementation`` on any case."""
    if implementation in _GPUS_ONLY and not cluster.on_gpus:
        what = "Hopper GPUs (compute capability 9.0)" if implementation in _HOPPER_ONLY else "GPUs"
        raise UsageError(f"{named} needs {what}, but the cluster has no GPU; {instead}")
    for node in cluster.nodes:
        is_other = node.num_gpus and node.accelerator and not node.accelerator.upper().startswith(HOPPER)
        if implementation in _HOPPER_ONLY and is_other:
            raise UsageError(f"{named} needs Hopper GPUs, but host {node.host} has {node.accelerator}; {instead}")
