"""The driver of a job: it reads the config, starts gangs, collects rows and concludes."""
