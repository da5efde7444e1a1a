"""What hosts and GPUs say about themselves, and what that means for a job. No Ray here, and jax only in ``links``."""
