"""Two sets of runs side by side: what differs, by how much, and whether the runs' own noise explains it."""
