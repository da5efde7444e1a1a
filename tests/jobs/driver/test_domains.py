"""NVLink domains: the domain of a rank, and what a job may run over several."""

import dataclasses
import types

import pytest

import cmkernel
from jobs.config.choices import Implementation
from jobs.config.schema import ClusterSettings, KernelSettings, Settings, TimingSettings
from jobs.driver.domains import fit_requests
from jobs.driver.plan import requests_of
from jobs.driver.ranks import Ranks
from jobs.errors import UsageError
from jobs.gang.messages import Place
from jobs.records.member import Member
from tests.jobs.health.health_facts import fabric, gpu

CLUSTER = "11111111-1111-1111-1111-111111111111"


def place(host, boot_id, gpu_facts):
    return Place(
        node_id=f"id-{host}",
        host=host,
        ip="10.0.0.1",
        pid=7,
        gpu_ids=("0",),
        resolved_ip="10.0.0.1",
        stderr_path="/logs/worker.err",
        boot_id=boot_id,
        gpu=gpu_facts,
    )


def test_two_raylets_of_one_machine_are_one_domain():
    one, two = place("a", "boot-1", gpu(0)), place("b", "boot-1", gpu(1))
    assert one.nvlink_domain == two.nvlink_domain
    assert one.nvlink_domain != place("a", "boot-2", gpu(0)).nvlink_domain


def test_a_fabric_spans_hosts_and_its_cliques_are_apart():
    wide = fabric(cluster_uuid=CLUSTER, clique_id=3)
    one, two = (place(f"host{i}", f"boot-{i}", gpu(fabric=wide)) for i in (1, 2))
    assert one.nvlink_domain == two.nvlink_domain == f"{CLUSTER}/3"
    other = place("host3", "boot-3", gpu(fabric=fabric(cluster_uuid=CLUSTER, clique_id=4)))
    assert other.nvlink_domain != one.nvlink_domain
    for broken in (fabric(cluster_uuid=CLUSTER, state="in progress"), fabric(cluster_uuid=CLUSTER, error="Timeout")):
        assert place("host1", "boot-1", gpu(fabric=broken)).nvlink_domain == "boot-1"
    assert place("host1", "boot-1", gpu(fabric=None)).nvlink_domain == "boot-1", "an old driver doesn't tell"


def test_cpu_ranks_and_silent_kernels_are_known_by_their_host():
    assert place("host1", "boot-1", None).nvlink_domain == "host1"
    assert place("host1", "", gpu()).nvlink_domain == "host1"


def members(*domains, on_gpus=True):
    return [
        Member(
            rank=rank,
            host=f"host{domain}",
            ip=f"10.0.0.{domain}",
            node_id="id",
            pid=rank + 10,
            device_kind="NVIDIA H200" if on_gpus else "cpu",
            gpu_uuid=f"GPU-{rank}" if on_gpus else None,
            gpu_index=rank,
            driver_version="580",
            versions={},
            stderr_path="",
            nvlink_domain=f"boot-{domain}",
        )
        for rank, domain in enumerate(domains)
    ]


def fit(implementation, ranks, *baselines, **kernel):
    """Requests of these ranks, and the reason if they differ from the config's."""
    kernel = KernelSettings(implementation=implementation, **kernel)
    settings = Settings(kernel=kernel, timing=TimingSettings(baselines=list(baselines)))
    gang = types.SimpleNamespace(members=tuple(ranks))
    requests = requests_of(settings)
    fitted, why = fit_requests(requests, Ranks(gang, ClusterSettings()))
    return list(requests), fitted, why


@pytest.mark.parametrize("implementation", [Implementation.mosaic_gpu, Implementation.mosaic_gpu_simple])
def test_a_named_kernel_over_several_domains_is_refused(implementation):
    with pytest.raises(UsageError) as refused:
        fit(implementation, members(1, 1, 2, 2, 2))
    assert str(refused.value) == (
        f"kernel.implementation={implementation.value} needs all ranks in one NVLink domain; outside that of rank 2 on "
        "host2 (pid 12): rank 0 on host1 (pid 10), rank 1 on host1 (pid 11); use kernel=ppermute, or fewer ranks "
        "(cluster.num_ranks=3)"
    )


def test_so_is_a_baseline():
    with pytest.raises(UsageError, match=r"timing.baselines=\['xla', 'mosaic_gpu'\]: mosaic_gpu needs all ranks"):
        fit(Implementation.ppermute, members(1, 2), "xla", "mosaic_gpu")


def test_the_list_of_ranks_is_cut_short():
    with pytest.raises(UsageError, match=r"rank 1 on host2 \(pid 11\), .* and 23 more; use"):
        fit(Implementation.mosaic_gpu, members(1, *range(2, 33)))


def test_auto_takes_what_runs_over_several_domains():
    _, fitted, why = fit(Implementation.auto, members(1, 1, 2), "xla", "ppermute", tile_m=64)
    assert [(r.requested, r.implementation, r.config) for r in fitted] == [
        ("ppermute", "ppermute", {}),
        ("baseline", "xla", {}),
    ], "without tiles, which it hasn't, and one row for it"
    assert "auto takes ppermute: mosaic_gpu needs all ranks in one NVLink domain; outside" in why
    assert why.endswith("; kernel.tile_m: of mosaic_gpu, so ppermute runs without")


@pytest.mark.parametrize(
    ("implementation", "ranks"),
    [
        (Implementation.mosaic_gpu, members(1, 1)),
        (Implementation.auto, members(1, 1)),
        (Implementation.auto, members(1, 1, 2, 2)),
        (Implementation.ppermute_two_level, members(1, 1, 2, 2)),
        (Implementation.ppermute, members(1, 2)),
        (Implementation.xla, members(1, 2)),
        (Implementation.auto, members(1, 2, on_gpus=False)),
    ],
)
def test_all_else_stays(implementation, ranks):
    requests, fitted, why = fit(implementation, ranks, "local")
    assert fitted == requests
    assert why is None


def test_auto_keeps_its_table():
    table = cmkernel.Table(())
    target = dataclasses.replace(requests_of(Settings())[0], table=table)
    gang = types.SimpleNamespace(members=tuple(members(1, 1, 2)))
    (ring,), _ = fit_requests([target], Ranks(gang, ClusterSettings()))
    assert ring.table is table
