"""Mistakes on the command line: the option first, then the rule."""

import pytest
from hydra.errors import HydraException

from jobs.config.command_line import quoted, with_quoted_paths
from jobs.config.composing import mistake
from tests.jobs.composed import composed


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("nonsense=1", "nonsense is no option; --help lists the options"),
        ("timing.iteration=1", "timing.iteration is no option; --help lists the options"),
        ("timing.iterations=many", "timing.iterations=many must be an integer"),
        ("cluster.outlier_z=high", "cluster.outlier_z=high must be a number"),
        ("results.report=perhaps", "results.report=perhaps must be true or false"),
        ("wandb.mode=loud", "wandb.mode=loud must be one of auto, online, offline, disabled"),
        ("timing.baselines=3", "timing.baselines=3 must be a list"),
        ("problem.name=null", "problem.name=null must not be null"),
        (
            "kernel=tensor",
            "kernel=tensor must be one of auto, mosaic_gpu, mosaic_gpu_simple, ppermute",
        ),
        ("problem=null", "problem=null: a group takes the name of a file in conf/, not null"),
        ("cluster.nic_gbps=3", "cluster.nic_gbps is now called cluster.nic_gbytes_per_s"),
        ("wandb.name=a(b", "wandb.name=a(b can't be parsed; for Hydra .* quotes of its own: \"wandb.name='a\\(b'\""),
    ],
)
def test_the_option_comes_first(override, message):
    with pytest.raises((HydraException, ValueError)) as error:
        composed(override)
    assert mistake(error.value, [override]).startswith(message.split(" .* ")[0].replace("\\", ""))
    assert "object_type" not in mistake(error.value, [override])


@pytest.mark.parametrize("name", ["~/my run", "it's [here]", "a\\'b", "x=y", "(1)"])
def test_a_path_arrives_as_the_shell_gave_it(name):
    for option, read in (("run_dir", lambda got: got.run_dir), ("kernel.table", lambda got: got.kernel.table)):
        assert read(composed(*with_quoted_paths([f"{option}={name}"]))) == name


def test_what_hydra_understands_stays_as_it_is():
    arguments = ["run_dir='a b'", "run_dir=/tmp/a-b_c.d", "run_dir=${now:%Y}", "run_dir=a,b", "wandb.name=~x", "-m"]
    assert with_quoted_paths(arguments) == arguments
    assert composed(f"wandb.name={quoted('a(b) c')}").wandb.name == "a(b) c"
