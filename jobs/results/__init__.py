"""What the driver does with rows: run directory, journal, derived figures, table, progress, W&B, RESULT line."""
