"""``jobs.compare`` as a process, and a checkout of this project whose ring is slow."""

import shutil
import subprocess
import sys

from tests.integration.bench_process import ROOT, environment

# On CPUs a comparison of few runs assumes nothing about their spread, unless asked to. Here one run may take several
# times as long as another, as on a busy machine.
SPREAD = ("--spread", "100%")
FAIL_OVER = ("--fail-over", "3%")
# Behind the ring's module. Each multiply depends on the one before and adds nothing: the results stay right.
MANY_TIMES = """
_dot = dot
def dot(lhs, rhs, **options):
    again = lambda _, out: _dot(lhs + (0 * out[:1, :1]).astype(lhs.dtype), rhs, **options)
    return lax.fori_loop(0, 2500, again, _dot(lhs, rhs, **options))
"""


def compare(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "jobs.compare", *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True
    )


def in_slow_checkout(tmp_path):
    """Arguments with which ``run`` runs a copy of this checkout whose ring multiplies each shard thousands of times."""
    folder = tmp_path / "checkout"
    for package in ("cmkernel", "jobs", "conf"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    with open(folder / "cmkernel" / "ppermute.py", "a") as module:
        module.write(MANY_TIMES)
    return {"root": folder, "PYTHONPATH": str(folder)}
