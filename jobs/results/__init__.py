"""Results of a job: files on disk, analysis, terminal output, W&B, pictures and report."""
