"""What the integration tests share: one cluster with a job server, as starting one takes a quarter of a minute."""

import pytest

from tests.integration.ray_cluster import ray_cluster


@pytest.fixture(scope="session")
def ray_head():
    """A head node with four CPUs, its dashboard and token authentication."""
    with ray_cluster(num_cpus=4) as cluster:
        yield cluster
