"""The ranks of a job: where they run, how they start, are called, and end. Ray stays in here."""

import os

# On a rank's death the raylet's account of it would be printed into the job's table on standard output; the error that
# the job ends with says the same. Ray reads this when it is imported, and log_to_driver=False doesn't cover it.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
# A call of Ray's behind ray.shutdown(), from a thread that outlives the job's end, would connect to whatever other Ray
# runs on this host. Read at the import, too.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
