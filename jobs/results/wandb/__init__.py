"""The job's W&B run."""
