"""Records of a job as plain data: everything that it measures and writes down."""
