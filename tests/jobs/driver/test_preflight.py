"""Refusals before any GPU is reserved."""

import types

import pytest

from jobs.config.problem import expand
from jobs.driver.preflight import refuse_unsupported
from jobs.errors import UsageError
from jobs.gang.shape import Node
from tests.jobs.composed import composed


def refuse(*overrides, num_gpus, accelerator=None):
    settings = composed("problem=tiny", *overrides)
    node = Node(node_id="0", host="a", ip="10.0.0.1", num_cpus=8, num_gpus=num_gpus, accelerator=accelerator)
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
