"""What rows say: figures, best, outliers, drift."""
