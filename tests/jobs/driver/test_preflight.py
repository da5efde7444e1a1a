"""Refusals before any GPU is reserved."""

import types

import pytest

from jobs.config.problem import expand
from jobs.driver.preflight import refuse_unsupported
from jobs.errors import UsageError
from jobs.gang.shape import Node
from jobs.records.op import Op
from jobs.records.work import least_bytes
from tests.jobs.composed import composed


def refuse(*overrides, num_gpus, accelerator=None, memory_bytes=None):
    settings = composed("problem=tiny", *overrides)
    node = Node("0", "a", "10.0.0.1", 8, num_gpus, accelerator, memory_bytes)
    cluster = types.SimpleNamespace(nodes=(node,), on_gpus=num_gpus > 0)
    refuse_unsupported(settings, expand(settings.problem, 2), cluster)


@pytest.mark.parametrize(
    "name", ["mosaic_gpu", "mosaic_gpu_simple", "local_cublas", "xla_cublas", "jax_ring", "torch_fused"]
)
def test_baselines_that_need_gpus(name):
    with pytest.raises(UsageError, match=rf"timing\.baselines={name} needs .*GPUs.* has no GPU; leave it out"):
        refuse(f"timing.baselines=[xla,{name}]", num_gpus=0)
    refuse(f"timing.baselines=[xla,{name}]", num_gpus=2, accelerator="H200")


def test_baselines_that_need_hopper():
    with pytest.raises(UsageError, match=r"timing\.baselines=jax_ring needs Hopper GPUs, but host a has A100"):
        refuse("timing.baselines=[jax_ring]", num_gpus=2, accelerator="A100")
    refuse("timing.baselines=[local_cublas,torch_fused]", num_gpus=2, accelerator="A100")


def test_kernels_that_need_gpus():
    with pytest.raises(UsageError, match=r"kernel\.implementation=mosaic_gpu needs Hopper GPUs .* use kernel=ppermute"):
        refuse("kernel=mosaic_gpu", num_gpus=0)


@pytest.mark.parametrize("op", list(Op))
def test_memory_of_cpu_ranks(op):
    """Operands and results alone are this large, on two ranks."""
    sizes = (
        "problem.m_shard=4096",
        "problem.k=8192",
        "problem.n_shard=2048",
        "problem.dtype=float32",
        f"problem.op={op}",
    )
    (case,) = expand(composed("problem=tiny", *sizes).problem, 2)
    shapes = [(2 * 4096, 2048), (8192, 2048)] if op is Op.all_gather_matmul else [(4096, 8192), (8192, 2048)]
    assert least_bytes(case) > 4 * sum(rows * columns for rows, columns in shapes)
    refuse(*sizes, num_gpus=0, memory_bytes=2 * least_bytes(case))
    refuse(*sizes, num_gpus=0)
    refuse(*sizes, num_gpus=2, accelerator="H200", memory_bytes=1)
    with pytest.raises(UsageError, match=r"problem.m_shard=4096 problem.k=8192 .* needs at least .* GiB of memory"):
        refuse(*sizes, num_gpus=0, memory_bytes=2 * least_bytes(case) - 1)
