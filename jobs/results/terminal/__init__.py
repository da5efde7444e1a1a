"""Output that a person reads while a job runs."""
