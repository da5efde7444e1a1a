"""Inside a rank: the plan of cases, operands, checks and timing."""
