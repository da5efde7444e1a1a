"""What a job measures and writes down, as plain data."""
