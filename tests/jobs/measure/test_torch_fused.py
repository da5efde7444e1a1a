"""The parts of PyTorch's baseline that need no GPU; the last tests need torch."""

import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jobs.measure import programs, torch_fused
from jobs.measure.programs import Request
from jobs.records.case import Case
from jobs.records.op import Op

CASE = Case(name="tiny", m_shard=16, k=64, n_shard=32, dtype="bfloat16", num_ranks=2)


@pytest.fixture
def environment(monkeypatch):
    for name in ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"):
        monkeypatch.setenv(name, "unset")


def test_nobody_imports_torch_unasked():
    code = "import jobs.bench, jobs.driver.run, jobs.measure.session, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_there_is_a_reason(environment, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NotImplementedError, match="torch can't be imported"):
        torch_fused.import_torch()
    assert os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert os.environ["NCCL_NVLS_ENABLE"] == "0"


def test_a_rank_without_a_gpu_is_not_ready():
    assert torch_fused.Group(0, 2).get_ready("127.0.0.1") == torch_fused.Readiness("platform='cpu' must be 'gpu'")


def test_a_group_is_joined_once():
    """Each point of a multirun asks anew, on the same gang."""
    group = torch_fused.Group(0, 2)
    reason = group.join("127.0.0.1", 0)
    assert reason, "torch was never imported"
    assert group.get_ready("127.0.0.1") == torch_fused.Readiness(reason)
    assert group.join("127.0.0.1", 1) == reason


def test_no_program_without_a_process_group():
    with pytest.raises(NotImplementedError, match="no process group"):
        programs.build(Request("baseline", "torch_fused"), CASE, None, (None, None), chain_length=2)


def test_what_torch_raises_is_a_reason_of_one_line(capsys):
    class Broken(torch_fused.Group):
        def take(self, array):
            raise RuntimeError("rendezvous\n  failed " + "x" * 1000)

    with pytest.raises(NotImplementedError, match=r"^RuntimeError: rendezvous failed x+ \.\.\.$") as error:
        torch_fused.build(Broken(0, 2), Op.all_gather_matmul, None, None, chain_length=2)
    assert len(str(error.value)) < 320
    assert "Traceback" in capsys.readouterr().err


@pytest.fixture
def group():
    torch = pytest.importorskip("torch")
    group = torch_fused.Group(0, 1)
    group.torch = types.SimpleNamespace(
        from_dlpack=torch.from_dlpack, cuda=types.SimpleNamespace(synchronize=lambda: None)
    )
    group.multiply = lambda op, lhs, rhs: torch.mm(lhs, rhs)
    return group


def test_an_eager_chain_ends_with_the_result_of_its_last_operands(group):
    rng = np.random.default_rng(0)
    lhs_sets = [group.take(jnp.asarray(rng.standard_normal((16, 64)), jnp.float32)) for _ in range(3)]
    rhs_sets = [group.take(jnp.asarray(rng.standard_normal((64, 32)), jnp.float32)) for _ in range(3)]
    before = [lhs.clone() for lhs in lhs_sets]
    multiplies = torch_fused.Multiplies(group, Op.all_gather_matmul, 5)
    multiplies.captures = False
    last = multiplies.chain(list(zip(lhs_sets, rhs_sets, strict=True)))
    np.testing.assert_array_equal(last.tensor, lhs_sets[1] @ rhs_sets[1])
    np.testing.assert_array_equal(before, lhs_sets, "the operands are jax's")


def test_arrays_go_to_torch_and_back(group):
    array = jnp.asarray(np.arange(12).reshape(3, 4), jnp.bfloat16)
    back = torch_fused.Result(group.torch, group.take(array)).block_until_ready().to_jax()
    assert isinstance(back, jax.Array)
    assert back.dtype == jnp.bfloat16
    np.testing.assert_array_equal(back, array)
