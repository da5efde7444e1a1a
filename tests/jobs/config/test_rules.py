"""Composed configs: Hydra's syntax works, and every mistake names its option."""

import pytest
from hydra.errors import HydraException

from jobs.config import schema as settings
from jobs.config.choices import Fault, Implementation, WandbMode
from jobs.errors import UsageError
from tests.jobs.composed import composed


def test_the_defaults_are_valid():
    defaults = composed()
    assert defaults.kernel.implementation is Implementation.auto
    assert defaults.wandb.mode is WandbMode.auto
    assert defaults.check.fault is Fault.none
    assert defaults.run_dir is None


def test_groups_and_dotted_overrides():
    got = composed("problem=llama3", "kernel=mosaic_gpu", "kernel.tile_m=64", "kernel.wg_dimension=M", "wandb=disabled")
    assert len(got.problem.layers) == 10
    assert got.kernel.config["tile_m"] == 64
    assert got.kernel.config["wg_dimension"].name == "M"
    assert got.wandb.mode is WandbMode.disabled


def test_force_add_and_remove():
    assert composed("++timing.iterations=7").timing.iterations == 7
    assert composed("~timing").timing.iterations == settings.TimingSettings().iterations


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("kernel.tile=3", "kernel.tile"),
        ("timing.iterations=many", "timing.iterations=many"),
        ("kernel=tensor_core", "kernel/tensor_core"),
        ("wandb.mode=loud", "wandb.mode=loud"),
        ("nonsense", "nonsense"),
    ],
)
def test_hydra_refuses_what_the_schema_does_not_have(override, message):
    with pytest.raises(HydraException) as error:
        composed(override)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["problem.op=mlp", "kernel=ppermute_two_level"],
            r"implementation=ppermute_two_level has no mlp; it has all_gather_matmul; problem.op=mlp needs another one",
        ),
        (
            ["problem.op=[all_gather_matmul,matmul_reduce_scatter]", "kernel=mosaic_gpu_simple"],
            r"kernel.implementation=mosaic_gpu_simple has no matmul_reduce_scatter",
        ),
        (
            ["problem.op=mlp_grad", "kernel=ppermute", "kernel.num_chunks=2"],
            r"kernel.num_chunks is set, but .* two ker",
        ),
        (
            ["problem.op=matmul_reduce_scatter", "kernel=mosaic_gpu", "kernel.num_comm_ctas=4"],
            r"kernel.num_comm_ctas is set, but .*mosaic_gpu with problem.op=matmul_reduce_scatter has no such option",
        ),
        (
            ["problem.op=matmul_reduce_scatter", "kernel=mosaic_gpu", "kernel.epi_tile_n=16"],
            r"kernel.epi_tile_n=16 must be a multiple of 32",
        ),
        (
            ["problem.op=conv"],
            r"problem.op=conv must be one of all_gather_matmul, matmul_reduce_scatter, mlp, mlp_grad",
        ),
        (["+kernel.tile=3"], r"kernel.tile is no option; kernel has implementation, table, tile_m"),
        (["+extra=1"], r"extra is no option; the config has problem, kernel"),
        (["timing.iterations=0"], r"timing.iterations=0 must be greater than 0"),
        (["timing.warmup=0"], r"timing.warmup=0 must be at least 1"),
        (["cluster.num_ranks=-1"], r"cluster.num_ranks=-1 must be greater than 0"),
        (["cluster.gpu_memory_fraction=1.5"], r"cluster.gpu_memory_fraction=1.5 must be in \(0, 1\]"),
        (
            ["timing.baselines=[nccl]"],
            r"'nccl' is none of mosaic_gpu, .*, xla, xla_cublas, .*, local, local_cublas, jax_ring, torch_fused",
        ),
        (["kernel=xla", "kernel.tile_m=64"], r"kernel.tile_m is set, but kernel.implementation=xla takes no config"),
        (["kernel=ppermute_two_level", "kernel.tile_m=64"], r"implementation=ppermute_two_level takes no config"),
        (["cluster.nic_gbytes_per_s=0"], r"cluster.nic_gbytes_per_s=0.0 must be greater than 0"),
        (["cluster.nics_per_host=-1"], r"cluster.nics_per_host=-1 must be greater than 0"),
        (["+cluster.link_gbps=450"], r"cluster.link_gbps is now called cluster.link_gbytes_per_s: its unit is GB/s"),
        (["+cluster.nic_gbps=50"], r"cluster.nic_gbps is now called cluster.nic_gbytes_per_s: its unit is GB/s"),
        (["kernel=ppermute", "kernel.num_chunks=0"], r"kernel.num_chunks=0 must be at least 1"),
        (["kernel=ppermute", "kernel.tile_m=64"], r"kernel.implementation=ppermute has no such option"),
        (["tuning.round_size=1"], r"tuning.round_size=1 must be at least 2"),
        (["tuning.early_stop=0.9"], r"tuning.early_stop=0.9 must be at least 1: it is a multiple of the fastest time"),
        (
            ["tuning.max_modelled=nan"],
            r"tuning.max_modelled=nan must be at least 1: .* of the heuristic's modelled time",
        ),
        (["tuning.max_modelled=nan"], r"tuning.max_modelled=nan must be at least 1"),
        (["tuning.min_gain=1"], r"tuning.min_gain=1.0 must be in \[0, 1\)"),
        (["tuning.max_candidates=0"], r"tuning.max_candidates=0 must be greater than 0"),
        (["kernel.tile_m=100"], r"kernel.tile_m=100 must be a multiple of 64"),
        (["kernel.tile_m=192", "kernel.tile_n=256", "kernel.epi_tile_n=128"], r"kernel.*accumulator registers"),
        (["kernel.max_concurrent_steps=9"], r"kernel.*bytes of shared memory a block; the limit is"),
    ],
)
def test_rules_between_options(overrides, message):
    with pytest.raises(UsageError, match=message):
        composed(*overrides)
