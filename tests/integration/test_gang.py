"""A gang of two CPU ranks on a real local Ray: its calls, and every way in which it breaks."""

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from jobs.config.choices import ClusterMode
from jobs.config.schema import ClusterSettings
from jobs.driver.hosts import refuse_unfit_hosts
from jobs.errors import GangLost, InfrastructureError, JobStopped, UsageError
from jobs.gang.capacity import default_num_ranks
from jobs.gang.gang import Gang, RankFailed
from jobs.measure.pulse import PULSE
from jobs.signals import stop_on_signals
from tests.integration.ray_cluster import FAKE_KEY
from tests.limits import GENEROUS_S, without_waiting

NUM_RANKS = 2
SETTINGS = ClusterSettings(mode=ClusterMode.local, setup_timeout_s=300, placement_timeout_s=20)
SESSION = f"{__name__}:Session"


class Session:
    """The work of a rank, in place of jobs.measure.session."""

    def __init__(self):
        import jax

        self.jax = jax
        self.mesh = jax.make_mesh((jax.device_count(),), ("x",))

    def who(self):
        jax = self.jax
        return {
            "rank": jax.process_index(),
            "num_ranks": jax.process_count(),
            "num_local_devices": jax.local_device_count(),
            "pid": os.getpid(),
            "key": os.environ.get("WANDB_API_KEY"),
            "initial_environment": Path("/proc/self/environ").read_text(),
        }

    def sum_of(self, values):
        jax, spec = self.jax, self.jax.sharding.PartitionSpec("x")
        x = jax.make_array_from_callback(
            (len(values),),
            jax.sharding.NamedSharding(self.mesh, spec),
            lambda index: jax.numpy.asarray(values, "float32")[index],
        )
        total = jax.shard_map(lambda part: jax.lax.psum(part, "x"), mesh=self.mesh, in_specs=spec, out_specs=spec)
        return float(jax.jit(total)(x).addressable_data(0)[0])

    def sum_for_ever(self):
        print(f"rank {self.jax.process_index()} adds for ever", file=sys.stderr, flush=True)
        while True:
            self.sum_of([1.0] * self.jax.device_count())

    def sum_without(self, rank):
        """A sum that one rank doesn't take part in."""
        if self.jax.process_index() == rank:
            time.sleep(600)
        return self.sum_of([1.0] * self.jax.device_count())

    def sum_slowly(self, times):
        for _ in range(times):
            self.sum_of([1.0] * self.jax.device_count())
            time.sleep(0.5)
            PULSE.beat()

    def compile_for_long(self, at_least_s):
        """Compile larger and larger programs, until one takes that many seconds."""

        def unrolled(x, length):
            for i in range(length):
                x = self.jax.numpy.sin(x) @ x + i
            return x

        length, took_s = 100, 0.0
        while took_s < at_least_s:
            began = time.monotonic()
            self.jax.jit(unrolled, static_argnums=1).lower(self.jax.numpy.ones((4, 4)), length).compile()
            length, took_s = length + length // 4, time.monotonic() - began

    def raise_on(self, rank, error):
        if self.jax.process_index() == rank:
            raise error

    def break_a_rule(self):
        from cmkernel.config import KernelConfig

        KernelConfig(tile_k=-1)

    def return_a_lock(self):
        return threading.Lock()


@pytest.fixture(scope="module")
def cluster(local_ray):
    with pytest.MonkeyPatch.context() as patch:
        # The driver has them, too.
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")
        patch.setenv("WANDB_API_KEY", FAKE_KEY)
        yield local_ray


@pytest.fixture(scope="module")
def gang(cluster):
    with Gang.start(cluster, SETTINGS, NUM_RANKS, session=SESSION) as gang:
        yield gang


@contextlib.contextmanager
def fresh_gang(cluster, **options):
    with Gang.start(cluster, SETTINGS, NUM_RANKS, session=SESSION, **options) as gang:
        yield gang
    await_gone(gang.members)


def await_gone(members):
    deadline = time.monotonic() + GENEROUS_S
    while alive := [member for member in members if is_alive(member.pid)]:
        assert time.monotonic() < deadline, f"still there: {alive}"
        time.sleep(0.05)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may vanish while it is read
        return False


@contextlib.contextmanager
def later(delay_s, action, *args):
    timer = threading.Timer(delay_s, action, args)
    timer.start()
    yield
    timer.join()


def test_local_ray(cluster):
    assert cluster.is_local
    assert not cluster.on_gpus
    assert default_num_ranks(cluster, SETTINGS) == 4
    assert refuse_unfit_hosts(cluster)["jax"] == "0.11.2"


def test_members(gang):
    assert [member.rank for member in gang.members] == list(range(NUM_RANKS))
    assert len({member.pid for member in gang.members}) == NUM_RANKS
    for member in gang.members:
        assert (member.device_kind, member.gpu_uuid, member.gpu_index, member.driver_version) == (
            "cpu",
            None,
            None,
            None,
        )
        assert set(member.versions) == {"python", "jax", "jaxlib", "ray", "numpy"}
        assert Path(member.stderr_path).exists()


def test_results_come_in_rank_order(gang):
    answers = gang.call("who", timeout_s=60, doing="asking")
    assert [who["rank"] for who in answers] == list(range(NUM_RANKS))
    assert [who["pid"] for who in answers] == [member.pid for member in gang.members]
    assert {(who["num_ranks"], who["num_local_devices"]) for who in answers} == {(NUM_RANKS, 1)}


def test_ranks_have_no_key(gang):
    for who in gang.call("who", timeout_s=60, doing="asking"):
        assert who["key"] is None
        assert FAKE_KEY not in who["initial_environment"]


def test_collective(gang):
    assert gang.call("sum_of", [1.0, 2.0], timeout_s=60, doing="adding") == [3.0, 3.0]


def test_refusal_by_cmkernel(gang):
    with pytest.raises(UsageError, match="tile_k=-1"):
        gang.call("break_a_rule", timeout_s=60, doing="opening")


@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_exception_of_a_rank(gang, rank):
    with pytest.raises(
        RankFailed, match=rf"^rank {rank} on \S+ \(pid \d+\) failed while raising: ValueError: boo\n(?s:.*)raise error"
    ):
        gang.call("raise_on", rank, ValueError("boo"), timeout_s=60, doing="raising")


def test_job_error_of_a_rank(gang):
    with pytest.raises(UsageError, match=r"^problem.k=7$"):
        gang.call("raise_on", 1, UsageError("problem.k=7"), timeout_s=60, doing="raising")


@pytest.mark.parametrize("method", ["no_such_method", "return_a_lock"])
def test_broken_call(gang, method):
    with pytest.raises(RankFailed, match=r"failed while trying: (AttributeError|TypeError)"):
        gang.call(method, timeout_s=60, doing="trying")


def test_gang_goes_on_after_exceptions(gang):
    assert gang.call("sum_of", [3.0, 4.0], timeout_s=60, doing="adding") == [7.0, 7.0]


@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_killed_rank(cluster, rank, capfd):
    with fresh_gang(cluster) as gang:
        victim = gang.members[rank]
        with (
            later(2, os.kill, victim.pid, signal.SIGKILL),
            without_waiting(),
            pytest.raises(InfrastructureError) as error,
        ):
            gang.call("sum_for_ever", timeout_s=200, doing="adding")
        assert str(error.value).startswith(f"rank {rank} on {victim.host} (pid {victim.pid}) died while adding: ")
        assert victim.stderr_path in str(error.value)
        assert "; its last lines: " in str(error.value)
        assert str(error.value).endswith(f"rank {rank} adds for ever")
        gang.close()
        gang.close()
    assert "A worker died" not in capfd.readouterr().out


def test_stuck_rank(cluster, tmp_path):
    with fresh_gang(cluster, stacks_path=tmp_path / "stacks.txt") as gang:
        gang.call("sum_of", [1.0, 2.0], timeout_s=60, doing="adding")
        with (
            without_waiting(),
            pytest.raises(
                InfrastructureError,
                match=r"no answer within 3 s from rank 0 on .*, rank 1 on .* while adding; rank 0: .*; stacks",
            ) as error,
        ):
            gang.call("sum_without", 1, timeout_s=3, doing="adding")
        (path,) = tmp_path.iterdir()
        assert str(path) in str(error.value)
        of_rank = path.read_text().split("=== rank ")
        assert "time.sleep(600)" in of_rank[2]
        assert "time.sleep(600)" not in of_rank[1]
        assert "in sum_without" in of_rank[1]


@pytest.mark.slow
def test_only_a_gang_that_gets_nowhere_hangs(cluster, tmp_path):
    limit_s = 4.0
    settings = dataclasses.replace(SETTINGS, stall_timeout_s=limit_s)
    path = tmp_path / "stacks.txt"
    with Gang.start(cluster, settings, NUM_RANKS, session=SESSION, stacks_path=path) as gang:
        gang.call("compile_for_long", limit_s + 1, timeout_s=120, doing="compiling")
        gang.call("sum_slowly", int(4 * limit_s), timeout_s=60, doing="adding")
        with pytest.raises(
            GangLost, match=r"^no progress for 4 s while adding; rank 0: iteration \d of sum_without, last finished"
        ):
            gang.call("sum_without", 1, timeout_s=200, doing="adding")
        assert "time.sleep(600)" in path.read_text()
    await_gone(gang.members)


@pytest.mark.slow
def test_frozen_rank(cluster, caplog):
    with fresh_gang(cluster) as gang:
        os.kill(gang.members[0].pid, signal.SIGSTOP)
        with (
            without_waiting(),
            pytest.raises(
                InfrastructureError, match=r"while adding; unresponsive: rank 0 on \S+ \(pid \d+\); rank 1: .*stacks"
            ),
        ):
            gang.call("sum_of", [1.0, 2.0], timeout_s=2, doing="adding")
        assert "in sum_of" in caplog.text


def test_signal_ends_a_call(cluster):
    with (
        fresh_gang(cluster) as gang,
        later(1, os.kill, os.getpid(), signal.SIGTERM),
        without_waiting(),
        pytest.raises(JobStopped),
        stop_on_signals(),
    ):
        gang.call("sum_for_ever", timeout_s=200, doing="adding")


def test_session_that_can_not_be_made(cluster):
    with pytest.raises(RankFailed, match=r"rank \d on .* failed while setting up jax.distributed: AttributeError"):
        Gang.start(cluster, SETTINGS, 1, session=f"{__name__}:NoSuchClass")


def test_more_ranks_than_there_are(cluster):
    """A local Ray gets no more nodes, so nothing is waited for."""
    with (
        without_waiting(),
        pytest.raises(
            InfrastructureError,
            match=r"cluster.num_ranks=99 must be at most \d+ on the CPUs of a local Ray",
        ),
    ):
        default_num_ranks(cluster, ClusterSettings(num_ranks=99, placement_timeout_s=200))


def test_ranks_that_are_taken(cluster):
    settings = ClusterSettings(placement_timeout_s=1)
    num_cpus = cluster.nodes[0].num_cpus
    with (
        Gang.start(cluster, SETTINGS, 1, session=SESSION),
        pytest.raises(
            InfrastructureError, match=rf"needs {num_cpus} CPUs .*, not free within 1 s; free now: \d+ CPUs; "
        ),
    ):
        Gang.start(cluster, settings, num_cpus, session=SESSION)
