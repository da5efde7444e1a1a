import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError

from cmkernel import Links
from cmkernel.config import KernelConfig
from jobs.config.schema import ClusterSettings
from jobs.errors import GangLost, InfrastructureError, UsageError
from jobs.gang.answers import Answer
from jobs.gang.failures import RankFailed, death_error, hang_error, is_death, name_ranks, session_error, timeout_error
from jobs.gang.messages import NOWHERE, Place, Report
from jobs.gang.neighbours import layout, refuse_shared_gpus, ring_order
from jobs.gang.rank import _as_data
from jobs.gang.watchdog import Watchdog, describe_states
from jobs.records.member import Member


def place(host, pid=7, gpu="0", ip=None, resolved_ip="10.0.0.1"):
    return Place(
        node_id=f"id-{host}",
        host=host,
        ip=ip or f"10.0.0.{host[-1]}",
        pid=pid,
        gpu_ids=(gpu,),
        resolved_ip=resolved_ip,
        stderr_path="/logs/worker.err",
    )


PLACES = [place("host1", 11), place("host1", 12, "1"), place("host2", 13)]


def raising(error):
    def function():
        raise error

    return Answer(1, value=_as_data(function))


def test_death_is_named_with_the_other_ranks():
    error = death_error(PLACES, Answer(1, error=ActorDiedError()), [0], [2], "timing xla")
    assert isinstance(error, GangLost)
    assert str(error).startswith("rank 1 on host1 (pid 12) died while timing xla: ActorDiedError: ")
    assert "host1:/logs/worker.err" in str(error)
    assert str(error).endswith("; also dead: rank 0 on host1 (pid 11); unresponsive: rank 2 on host2 (pid 13)")


def test_death_before_the_first_answer():
    answer = Answer(0, error=ActorDiedError())
    assert is_death(answer)
    assert "an actor that has no rank yet (0) died while starting" in str(
        death_error([NOWHERE], answer, [], [], "starting")
    )


def report(**changes):
    defaults = {"idle_s": 0.0, "is_compiling": False, "step": "burst xla", "iteration": 3, "finished_case": "tiny"}
    return Report(**{**defaults, "stacks": "", **changes})


def test_timeout_names_who_is_missing():
    error = timeout_error(PLACES, {2, 1}, {0: report(), 2: report()}, 5.0, "checking", "/run/stacks.txt")
    assert not isinstance(error, GangLost)
    assert str(error) == (
        "no answer within 5 s from rank 1 on host1 (pid 12), rank 2 on host2 (pid 13) while checking; "
        "unresponsive: rank 1 on host1 (pid 12); "
        "ranks 0, 2: iteration 3 of burst xla, last finished case: tiny; stacks: /run/stacks.txt"
    )


def test_hang_tells_where_the_ranks_are():
    error = hang_error(PLACES, {0: report(), 1: report(iteration=2)}, 30.0, "timing xla", "in the log")
    assert isinstance(error, GangLost)
    assert str(error) == (
        "no progress for 30 s while timing xla; unresponsive: rank 2 on host2 (pid 13); "
        "rank 0: iteration 3 of burst xla, last finished case: tiny; "
        "rank 1: iteration 2 of burst xla, last finished case: tiny; stacks: in the log"
    )


def test_states_of_many_ranks_stay_short():
    reports = {rank: report() for rank in range(512)} | {7: report(step=None), 9: report(is_compiling=True)}
    assert describe_states(reports) == (
        "ranks 0-6, 8, 10-511: iteration 3 of burst xla, last finished case: tiny; "
        "rank 7: between two steps, last finished case: tiny; "
        "rank 9: compiling in iteration 3 of burst xla, last finished case: tiny"
    )
    assert name_ranks(PLACES * 100, range(300)).endswith("rank 7 on host1 (pid 12) and 292 more")


@pytest.mark.parametrize(
    ("reports", "stuck", "due_s"),
    [
        ({0: report(idle_s=31.0), 1: report(idle_s=40.0)}, True, 1030.5),
        ({0: report(idle_s=31.0), 1: report(idle_s=29.0)}, False, 1031.5),
        ({0: report(idle_s=500.0), 1: report(idle_s=500.0, is_compiling=True)}, False, 1060.5),
        ({}, True, 1030.5),
    ],
)
def test_stuck_is_who_got_nowhere(reports, stuck, due_s, monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    watchdog = Watchdog(30.0)
    assert watchdog.due_s == 1030.5
    assert watchdog.is_stuck(reports, 1030.0) is stuck
    assert watchdog.due_s == due_s, "when the rank that got furthest would have been idle for the limit"


def test_no_limit_is_never_due():
    assert Watchdog(math.inf).due_s == math.inf


def test_refusal_by_cmkernel_is_the_users_mistake():
    answer = Answer(0, value=_as_data(lambda: KernelConfig(tile_k=-1)))
    error = session_error(PLACES, answer, [], "opening")
    assert isinstance(error, UsageError)
    assert "tile_k=-1" in str(error)


def test_any_other_exception_is_a_bug():
    error = session_error(PLACES, raising(ValueError("of our own")), [], "opening")
    assert isinstance(error, RankFailed)
    assert error.exit_code == 3
    assert str(error).startswith("rank 1 on host1 (pid 12) failed while opening: ValueError: of our own\n")
    assert "in function" in str(error)


def test_job_error_comes_back_as_it_was():
    error = session_error(PLACES, raising(UsageError("problem.k=7")), [], "opening")
    assert isinstance(error, UsageError)
    assert str(error) == "problem.k=7"


def test_exception_beside_a_silent_rank_is_its_echo():
    error = session_error(PLACES, raising(RuntimeError("connection reset")), [2], "timing")
    assert isinstance(error, GangLost)
    assert "unresponsive: rank 2 on host2 (pid 13)" in str(error)


class JaxRuntimeError(RuntimeError):
    """By its name, as jax's own."""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("INTERNAL: Gloo all-gather failed: [pair.cc:547] Connection closed by peer [10.77.0.2]:4711", GangLost),
        ("INTERNAL: Gloo collective permute failed: Timed out waiting 30000ms for recv operation", GangLost),
        ("NCCL operation failed: remote process exited or there was a network error", GangLost),
        ("RESOURCE_EXHAUSTED: Out of memory", RankFailed),
    ],
)
def test_a_peer_that_can_not_be_reached_is_lost(text, kind):
    assert type(session_error(PLACES, raising(JaxRuntimeError(text)), [], "timing")) is kind


def test_ranks_are_ordered_by_host_and_gpu():
    places = [place("host10", gpu="0"), place("host9", gpu="10"), place("host10", gpu="1"), place("host9", gpu="9")]
    assert [(p.host, *p.gpu_ids) for p in sorted(places, key=ring_order)] == [
        ("host9", "9"),
        ("host9", "10"),
        ("host10", "0"),
        ("host10", "1"),
    ]


@given(data=st.data(), ranks=st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_the_flat_ring_crosses_hosts_as_seldom_as_possible(data, ranks):
    """Once out of each host: the least for a ring that visits all."""
    places = [place(f"gpu-{host}", gpu=str(gpu)) for host, count in enumerate(ranks) for gpu in range(count)]
    ordered = [p.host for p in sorted(data.draw(st.permutations(places)), key=ring_order)]
    crossings = sum(host != following for host, following in zip(ordered, ordered[1:] + ordered[:1], strict=True))
    assert crossings == (len(ranks) if len(ranks) > 1 else 0)


def member(host, device_kind="NVIDIA H200"):
    nowhere = {"rank": 0, "ip": "", "node_id": "", "pid": 0, "gpu_uuid": None, "gpu_index": None, "stderr_path": ""}
    return Member(host=host, nvlink_domain=host, device_kind=device_kind, driver_version=None, versions={}, **nowhere)


def test_layout_of_the_ranks():
    even = layout([member(host) for host in ("a", "a", "b", "b")], ClusterSettings())
    assert (even.num_hosts, even.devices_per_host, even.two_level_refusal) == (2, 2, None)
    uneven = layout([member(host) for host in ("a", "a", "a", "b")], ClusterSettings())
    assert (uneven.ranks_per_host, uneven.devices_per_host) == ((3, 1), None)
    assert uneven.two_level_refusal == "needs the same number of ranks on each host, and the 2 hosts have 3, 1"


def test_links_are_those_of_the_config_or_of_the_device():
    given = {"nic_gbytes_per_s": 12.5, "nics_per_host": 1}
    assert layout([member("a")], ClusterSettings()).links == Links(450.0, nic_gbytes_per_s=50.0, nics_per_host=8)
    assert layout([member("a")], ClusterSettings(**given)).links == Links(450.0, nic_gbytes_per_s=12.5, nics_per_host=1)
    assert layout([member("a", "cpu")], ClusterSettings(link_gbytes_per_s=20.0)).links == Links(
        20.0, nic_gbytes_per_s=1.25
    )


def test_two_ranks_on_one_gpu():
    member = Member(
        rank=0,
        host="host1",
        ip="10.0.0.1",
        node_id="id",
        pid=11,
        device_kind="NVIDIA H200",
        gpu_uuid="GPU-1",
        gpu_index=0,
        driver_version="580",
        versions={},
        stderr_path="",
    )
    refuse_shared_gpus([member, dataclasses.replace(member, rank=1, gpu_uuid="GPU-2")])
    refuse_shared_gpus([dataclasses.replace(member, rank=r, gpu_uuid=None) for r in (0, 1)])
    with pytest.raises(InfrastructureError, match=r"rank 0 on host1 \(pid 11\) and rank 1 on .* have one GPU, GPU-1"):
        refuse_shared_gpus([member, dataclasses.replace(member, rank=1)])


def test_the_window_over_the_arena_is_explained():
    """The text that jax raised on 2x H200 when a third executable with symmetric memory was created."""
    text = (
        "INTERNAL: NCCL operation nccl_status failed: internal error - please report this issue to the NCCL "
        "developers. Last NCCL warning(error) log entry (may be unrelated) 'Allocation failed. No suitable space "
        "found to accommodate size=0x1179a00000 within limit=0x2300000000'."
    )
    error = session_error(PLACES, raising(RuntimeError(text)), [], "timing")
    assert "cluster.gpu_memory_fraction" in str(error)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in str(error)
