"""Eight CPU devices for everything that runs in the test process; set before jax is imported.

Half of the tests' time is XLA's compilation, so most of its optimizations are off here. The jobs of the integration
tests have them, and so does a test that reads the compiled program.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from hypothesis import settings

# How long an example takes depends on the machine.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
