"""Analysis of rows: figures, the best implementation, outliers, drift."""
