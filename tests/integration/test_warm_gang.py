"""A gang that points of a multirun share, where one of them fails. The points connect in a process of their own."""

import subprocess
import sys

import pytest

from tests.integration.bench_process import ROOT, environment

pytestmark = pytest.mark.slow

POINTS = """
import contextlib, sys
from pathlib import Path
from jobs.errors import UsageError
from jobs.gang.gang import Gang
from jobs.gang.warm_gang import WarmGang
from tests.jobs.composed import composed

settings, stacks = composed("cluster=local", "cluster.num_ranks=2").cluster, Path(sys.argv[1])
pids, left = [], []

def is_running(pid):
    try:
        return b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False

def start(*args, **options):
    left.append([pid for pid in pids if is_running(pid)])
    return real_start(*args, **options)

real_start, Gang.start = Gang.start, start
with WarmGang() as warm:
    with (
        contextlib.suppress(UsageError),
        warm.connected(settings, point="0") as cluster,
        warm.gang(2, stacks) as gang,
    ):
        pids += [member.pid for member in gang.members]
        raise UsageError("a rank refuses the shape")
    with warm.connected(settings, point="1") as same, warm.gang(2, stacks):
        assert same is cluster, "the mistake is the user's"
        assert warm.reused is None
assert len(pids) == 2
assert left == [[], []], left
"""


def test_a_gang_begins_when_that_of_a_point_with_a_mistake_is_gone(tmp_path):
    command = [sys.executable, "-c", POINTS, str(tmp_path / "stacks")]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
