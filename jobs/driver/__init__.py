"""What the driver of a job does: read the config, start gangs, collect rows, conclude."""
