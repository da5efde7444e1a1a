"""What a person reads while a job runs."""
