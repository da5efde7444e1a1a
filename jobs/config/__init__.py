"""Options: their schema, their rules, the cases of a problem, and what a resumed job takes over."""
