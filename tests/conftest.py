"""Eight CPU devices for everything that runs in the test process; set before jax is imported."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
