"""The jobs that people submit: one module an entry point, and the rooms they share."""
