"""Clusters that the integration tests share, as starting one takes a quarter of a minute.

They end with the package's last test, so that no Ray runs beside the tests of other folders.
"""

import os
import subprocess
import sys

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


AWAIT_NODES = """
import sys, time
import ray

ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < 3:
    time.sleep(0.2)
"""


@pytest.fixture(scope="package")
def namespaced_hosts():
    with hosts(3, num_cpus=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three_hosts(namespaced_hosts):
    """Three hosts of one CPU each, in network namespaces, all of which have joined."""
    command = namespaced_hosts.hosts[0].command(sys.executable, "-c", AWAIT_NODES, namespaced_hosts.address)
    subprocess.run(command, env=dict(namespaced_hosts.env), check=True, timeout=300)
    return namespaced_hosts
