"""What the points of a multirun hand on, where a point fails."""

import contextlib
from pathlib import Path

import pytest

from jobs.errors import UsageError
from jobs.gang.gang import Gang
from jobs.gang.warm_gang import WarmGang
from tests.jobs.composed import composed

pytestmark = pytest.mark.slow
SETTINGS = composed("cluster=local", "cluster.num_ranks=2").cluster


def is_running(pid):
    try:
        return b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_gang_begins_when_that_of_a_point_with_a_mistake_is_gone(tmp_path, monkeypatch):
    # What conftest.py sets is for this process.
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    pids, left = [], []

    def start(*args, **options):
        left.append([pid for pid in pids if is_running(pid)])
        return real_start(*args, **options)

    real_start = Gang.start
    monkeypatch.setattr(Gang, "start", start)
    with WarmGang() as warm:
        with (
            contextlib.suppress(UsageError),
            warm.connected(SETTINGS, point="0") as cluster,
            warm.gang(2, tmp_path / "stacks") as gang,
        ):
            pids += [member.pid for member in gang.members]
            raise UsageError("a rank refuses the shape")
        with warm.connected(SETTINGS, point="1") as same, warm.gang(2, tmp_path / "stacks"):
            assert same is cluster, "the mistake is the user's"
            assert warm.reused is None
    assert left == [[], []]
