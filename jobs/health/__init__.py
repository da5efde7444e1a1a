"""Facts about hosts and GPUs, and their meaning for a job. No Ray, and jax only in ``links``."""
