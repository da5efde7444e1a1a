"""Two sets of runs side by side: the differences, their size, and whether noise explains them."""
