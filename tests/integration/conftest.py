"""Clusters that the integration tests share, as starting one takes a quarter of a minute.

They end with the package's last test, so that no Ray runs beside the tests of other folders.
"""

import os

import pytest

from jobs.config.choices import ClusterMode
from jobs.config.schema import ClusterSettings
from jobs.gang.cluster import connect
from tests.integration.hosts import hosts
from tests.integration.ray_cluster import FAKE_KEY, ray_cluster

# No server listens at this address.
WANDB_ENV = {"WANDB_API_KEY": FAKE_KEY, "WANDB_BASE_URL": "http://127.0.0.1:1"}


@pytest.fixture(scope="package")
def ray_head():
    """A head node with four CPUs, its dashboard and token authentication, and a W&B key in its environment."""
    with ray_cluster(num_cpus=4, env=WANDB_ENV) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def local_ray():
    """A local Ray of the test process, with four CPUs, for gangs that tests start by themselves.

    Ray has RAY_ADDRESS, which a local one must ignore, and a W&B key, which must not reach a rank. It doesn't have what
    conftest.py sets for jax in the test process.
    """
    saved = dict(os.environ)
    os.environ.update(RAY_ADDRESS="127.0.0.1:1", WANDB_API_KEY=FAKE_KEY)
    for name in ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_DISABLE_MOST_OPTIMIZATIONS"):
        os.environ.pop(name, None)
    settings = ClusterSettings(mode=ClusterMode.local, num_ranks=4)
    try:
        with connect(settings) as cluster:
            assert os.environ["RAY_ADDRESS"] == "127.0.0.1:1"
            # Ray's token stays until it ends.
            os.environ.update(saved)
            yield cluster
    finally:
        os.environ.clear()
        os.environ.update(saved)


@pytest.fixture(scope="package")
def namespaced_hosts():
    with hosts(3, num_cpus=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three_hosts(namespaced_hosts):
    """Three hosts of one CPU each, in network namespaces; a test may have started one anew."""
    namespaced_hosts.await_nodes()
    return namespaced_hosts
