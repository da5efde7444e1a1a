"""Ranks on the GPUs of this machine, for a file of tests; the number of calls that each test makes."""

import os

import pytest

from tests.gpu import attacks
from tests.gpu.ranks import Ranks, visible_gpus


@pytest.fixture(scope="session")
def num_calls():
    """Calls of each combination; long runs: ``GPU_CALLS=10000 scripts/test.sh -m gpu --timeout=3600``."""
    return int(os.environ.get("GPU_CALLS", "100"))


@pytest.fixture(scope="session")
def timeout_s(num_calls):
    """Seconds for the calls of one test, and for compiling: past it a kernel hangs."""
    return 90 + num_calls / 10


@pytest.fixture(scope="session")
def gpus():
    names = visible_gpus()
    if not names:
        pytest.skip("no NVIDIA GPU on this machine")
    return names


@pytest.fixture(scope="module")
def one_gpu(gpus):
    ranks = Ranks(gpus[:1])
    yield from supported(ranks)


@pytest.fixture(scope="module")
def all_gpus(gpus):
    if len(gpus) < 2:
        pytest.skip("one NVIDIA GPU on this machine; a ring over GPUs needs two")
    ranks = Ranks(gpus)
    yield from supported(ranks)


def supported(ranks):
    """The ranks, or a skip that says why their GPUs can't run the kernel: no Hopper, or an old NCCL."""
    try:
        if reason := ranks.call(attacks.unsupported_reason)[0]:
            pytest.skip(reason)
        yield ranks
    finally:
        ranks.kill()
