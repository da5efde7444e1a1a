"""What the integration tests share: one cluster with a job server, as starting one takes a quarter of a minute."""

import pytest

from tests.integration.ray_cluster import ray_cluster

# As where somebody has put the key into the environment in which Ray was started. There is no server at that address.
FAKE_KEY = "fade0123456789abcdef0123456789abcdefade0"
WANDB_ENV = {"WANDB_API_KEY": FAKE_KEY, "WANDB_BASE_URL": "http://127.0.0.1:1"}


@pytest.fixture(scope="session")
def ray_head():
    """A head node with four CPUs, its dashboard and token authentication, and a W&B key in its environment."""
    with ray_cluster(num_cpus=4, env=WANDB_ENV) as cluster:
        yield cluster
