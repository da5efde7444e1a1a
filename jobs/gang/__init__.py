"""The ranks of a job: their placement, start, calls and end. Only this package and the entry points use Ray."""

import os

# When a rank dies, Ray prints the raylet's account into the job's table on standard output; the job's error says the
# same. log_to_driver=False doesn't prevent that. Ray reads this variable at its import.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
# A thread that outlives the job may call Ray after ray.shutdown(), which would connect to any other Ray on this host.
# Ray reads this variable at its import, too.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
# Ray gives its workers a niceness of 15: beside any other program a rank would have next to nothing of a core. The
# raylet of a local Ray reads this.
os.environ.setdefault("RAY_worker_niceness", "0")
# Attempts of some 45 s each to reach the GCS of a Ray that starts, of which Ray makes 20.
os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
# Under `uv run` Ray would start its workers by uv as well, in an environment that has to be made for each.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
