"""What the integration tests share: one cluster with a job server, as starting one takes a quarter of a minute."""

import pytest

from tests.integration.ray_cluster import FAKE_KEY, ray_cluster

# No server listens at this address.
WANDB_ENV = {"WANDB_API_KEY": FAKE_KEY, "WANDB_BASE_URL": "http://127.0.0.1:1"}


@pytest.fixture(scope="session")
def ray_head():
    """A head node with four CPUs, its dashboard and token authentication, and a W&B key in its environment."""
    with ray_cluster(num_cpus=4, env=WANDB_ENV) as cluster:
        yield cluster
