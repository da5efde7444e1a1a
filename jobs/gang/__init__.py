"""The ranks of a job: where they run, how they start, are called, and end. Ray stays in here."""

import os

# On a rank's death the raylet's account of it would be printed into the job's table on standard output; the error that
# the job ends with says the same. Ray reads this when it is imported, and log_to_driver=False doesn't cover it.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
