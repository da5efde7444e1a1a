"""Code that runs inside a rank: operands, programs, checks, times and telemetry."""
