"""Findings from facts: a healthy fact is ok, and each fault has its verdict and its cure."""

import io
import logging

import pytest

from jobs.config.schema import HealthSettings
from jobs.errors import InfrastructureError
from jobs.health import gpu_findings, host_findings
from jobs.health.facts import Bandwidth, GpuProcess, NvLinks, RemappedRows, Xid
from jobs.health.finding import Finding, Verdict, refuse_failures
from jobs.health.link_findings import BETWEEN, INSIDE, gpu_link_floor, link_findings
from jobs.health.table import print_findings
from tests.jobs.health.health_facts import VERSIONS, fabric, gpu, host


def remapped(**changes):
    return RemappedRows(**{"correctable": 0, "uncorrectable": 1, "pending": False, "failed": False, **changes})


def of_gpu(check, facts):
    (finding,) = [finding for finding in gpu_findings.gpu_findings("gpu-1 GPU 0", facts) if finding.check == check]
    return finding


def test_a_healthy_gpu_is_ok():
    assert {finding.verdict for finding in gpu_findings.gpu_findings("gpu-1 GPU 0", gpu())} == {Verdict.ok}


@pytest.mark.parametrize(
    ("check", "changes", "verdict", "found"),
    [
        ("memory", {"memory_used_bytes": 3 * 2**30}, Verdict.fail, "138.0 of 141.0 GiB free: a process that isn't"),
        (
            "memory",
            {"memory_used_bytes": 3 * 2**30, "processes": (GpuProcess(pid=42, used_bytes=None),)},
            Verdict.fail,
            "process 42 uses 3.0 GiB",
        ),
        ("memory", {"processes": (GpuProcess(pid=42, used_bytes=1),)}, Verdict.warn, "process 42 is there"),
        ("ECC", {"ecc_volatile": 2, "ecc_aggregate": 2}, Verdict.fail, "2 uncorrected errors since the driver"),
        ("ECC", {"ecc_aggregate": 5}, Verdict.warn, "5 uncorrected errors in the past"),
        ("ECC", {"ecc_enabled": False, "ecc_volatile": None}, Verdict.warn, "switched off"),
        ("remapped rows", {"remapped_rows": remapped()}, Verdict.ok, "1 rows (1 after uncorrected errors)"),
        ("remapped rows", {"remapped_rows": remapped(pending=True)}, Verdict.fail, "one is pending"),
        ("remapped rows", {"remapped_rows": remapped(failed=True)}, Verdict.fail, "one failed"),
        ("NVLink", {"nvlinks": NvLinks(num_links=18, num_active=17, errors={})}, Verdict.warn, "17 of 18 links active"),
        (
            "NVLink",
            {"nvlinks": NvLinks(num_links=18, num_active=18, errors={"replay": 9, "recovery": 1})},
            Verdict.warn,
            "replay 9, recovery 1",
        ),
        ("fabric", {"fabric": fabric(state="in progress")}, Verdict.warn, "registration in progress"),
        ("fabric", {"fabric": fabric(error="Timeout")}, Verdict.warn, "registration failed: Timeout"),
        ("fabric", {"fabric": fabric(is_degraded=True)}, Verdict.warn, "degraded bandwidth"),
        ("MIG", {"is_mig": True}, Verdict.warn, "divided into instances"),
    ],
)
def test_a_fault_of_a_gpu(check, changes, verdict, found):
    finding = of_gpu(check, gpu(**changes))
    assert finding.verdict is verdict
    assert found in finding.found
    assert bool(finding.mend) == (verdict is not Verdict.ok)


def test_what_isnt_supported_isnt_ok():
    silent = gpu(
        memory_used_bytes=None,
        ecc_enabled=None,
        ecc_volatile=None,
        remapped_rows=None,
        nvlinks=None,
        fabric=None,
        unreadable={"ecc_volatile": "Not Supported", "nvlinks": "Insufficient Permissions"},
    )
    found = {finding.check: finding for finding in gpu_findings.gpu_findings("gpu-1 GPU 0", silent)}
    assert {finding.verdict for finding in found.values()} == {Verdict.unknown}
    assert found["ECC"].found == "not supported"
    assert found["NVLink"].found == "insufficient permissions"
    assert found["remapped rows"].found == "unknown"


@pytest.mark.parametrize(
    ("capability", "is_named", "verdict"),
    [
        ("9.0", True, Verdict.ok),
        ("10.0", False, Verdict.warn),
        ("8.0", True, Verdict.fail),
        (None, True, Verdict.unknown),
    ],
)
def test_architecture(capability, is_named, verdict):
    facts = gpu(compute_capability=capability)
    finding = gpu_findings.architecture_finding("gpu-1 GPU 0", facts, needed="9.0", is_named=is_named)
    assert finding.verdict is verdict


def test_peer_access():
    assert [f.verdict for f in gpu_findings.peer_findings(host())] == [Verdict.ok, Verdict.ok]
    assert gpu_findings.peer_findings(host(gpus=(gpu(peers={}),))) == [], "a single GPU has no peers"
    broken = {"peers": {1: "the chipset doesn't support it"}}
    (finding,) = gpu_findings.peer_findings(host(gpus=(gpu(**broken),)))
    assert finding.verdict is Verdict.fail, "NVLink is there, so access must be, too"
    assert finding.found == "not to GPU 1 (the chipset doesn't support it)"
    (finding,) = gpu_findings.peer_findings(host(gpus=(gpu(**broken, nvlinks=None),)))
    assert finding.verdict is Verdict.warn


def test_xids_name_their_gpu():
    assert gpu_findings.xid_findings(host(gpus=()), (), None) == []
    (quiet,) = gpu_findings.xid_findings(host(), (), None)
    assert quiet.verdict is Verdict.ok
    (deaf,) = gpu_findings.xid_findings(host(), (), "Not Supported")
    assert deaf.verdict is Verdict.unknown
    (heard,) = gpu_findings.xid_findings(host(), (Xid(gpu_uuid="GPU-1", number=79),) * 3, None)
    assert (heard.where, heard.found, heard.verdict) == ("gpu-1 GPU 1", "XID 79", Verdict.fail)


def test_versions():
    patch = {**VERSIONS, "python": "3.12.9"}
    other = {**VERSIONS, "jax": "0.12.0", "numpy": "none"}
    hosts = [host("gpu-1"), host("gpu-2", versions=patch), host("gpu-3", versions=other)]
    findings = host_findings.version_findings(VERSIONS, hosts)
    assert [finding.verdict for finding in findings] == [Verdict.ok, Verdict.ok, Verdict.fail]
    assert findings[2].where == "gpu-3 (10.0.0.3)"
    assert findings[2].found == "jax 0.12.0 instead of 0.11.2, numpy none instead of 2.5.2"
    assert "scripts/submit.sh --install" in findings[2].mend


@pytest.mark.parametrize("loopback", ["127.0.1.1", "::1"])
def test_the_loopback_trap_takes_several_hosts(loopback):
    trap = host("gpu-2", resolved_ip=loopback)
    (alone,) = host_findings.name_findings([trap, trap], on_gpus=False)
    assert alone.verdict is Verdict.ok
    fine, trapped = host_findings.name_findings([host(), trap], on_gpus=False)
    assert (fine.verdict, trapped.verdict) == (Verdict.ok, Verdict.fail)
    assert trapped.mend == 'add the line "10.0.0.2 gpu-2" to /etc/hosts there'
    _, trapped = host_findings.name_findings([host(), trap], on_gpus=True)
    assert trapped.verdict is Verdict.warn, "NCCL chooses an interface itself"


@pytest.mark.parametrize("on_gpus", [False, True])
def test_a_name_that_gloo_cannot_bind_fails_even_one_host(on_gpus):
    nameless = host(resolved_ip=None, owns_resolved_ip=False)
    elsewhere = host(resolved_ip="192.0.2.1", owns_resolved_ip=False)
    for hosts, found in (([nameless], "it doesn't resolve"), ([elsewhere], "none of its interfaces has")):
        (finding,) = host_findings.name_findings(hosts, on_gpus=on_gpus)
        assert finding.verdict is Verdict.fail
        assert found in finding.found


def test_limits_of_memory():
    small = host(shm_bytes=64 * 2**20, memlock_bytes=8 * 2**20)
    assert [f.verdict for f in host_findings.shm_findings([host(), small])] == [Verdict.ok, Verdict.warn]
    assert [f.verdict for f in host_findings.memlock_findings([small])] == [Verdict.ok], "one host needs no RDMA"
    verdicts = [finding.verdict for finding in host_findings.memlock_findings([host("gpu-2"), small])]
    assert verdicts == [Verdict.ok, Verdict.warn]


@pytest.mark.parametrize(
    ("offset_s", "error_s", "verdict", "found"),
    [
        (0.0001, 0.001, Verdict.ok, "within 1 ms"),
        (0.05, 0.001, Verdict.ok, "+50.0 ms"),
        (-30.0, 0.001, Verdict.warn, "-30000.0 ms"),
        (1.5, 1.0, Verdict.ok, "+1500.0 ms"),
    ],
)
def test_clocks(offset_s, error_s, verdict, found):
    (finding,) = host_findings.clock_findings({"gpu-1": (offset_s, error_s)})
    assert finding.verdict is verdict
    assert found in finding.found


def test_drivers():
    assert host_findings.driver_findings([host(driver_version=None, gpus=())]) == [], "a host without GPUs"
    assert {f.verdict for f in host_findings.driver_findings([host(), host("gpu-2")])} == {Verdict.ok}
    mixed = host_findings.driver_findings([host(), host("gpu-2", driver_version="590.1")])
    assert [f.verdict for f in mixed if f.check == "NVIDIA driver"] == [Verdict.warn, Verdict.warn]
    old = host_findings.driver_findings([host(driver_version="550.1", cuda_version="12.4")])
    assert old[0].verdict is Verdict.fail
    (lost,) = host_findings.driver_findings([host(nvml_error="Driver/library version mismatch", driver_version=None)])
    assert lost.verdict is Verdict.fail
    bare = host_findings.driver_findings([host(versions={**VERSIONS, "jax-cuda13-plugin": "none"})])
    assert "requirements-cuda13.lock" in bare[1].mend


def test_nccl():
    loaded = {"gpu-1": "2.30.7", "gpu-2": "2.28.9", "gpu-3": "none"}
    named = host_findings.nccl_findings(loaded, needed=(2, 29, 0), is_named=True)
    assert [finding.verdict for finding in named] == [Verdict.ok, Verdict.fail, Verdict.fail]
    auto = host_findings.nccl_findings(loaded, needed=(2, 29, 0), is_named=False)
    assert [finding.verdict for finding in auto] == [Verdict.ok, Verdict.warn, Verdict.warn]


def test_a_slow_link_is_one_below_the_others():
    def judged(*speeds):
        links = [Bandwidth(link=f"link {i}", bytes_per_s=speed) for i, speed in enumerate(speeds)]
        found = link_findings("links", links, mend="mend", cure="cure")
        return [(finding.verdict, finding.where, finding.found) for finding in found]

    healthy = (Verdict.ok, "2 links", "98 to 100 GB/s, median 99 GB/s")
    assert judged(100e9, 98e9, 40e9) == [healthy, (Verdict.warn, "link 2", "40 GB/s; the median is 98 GB/s")]
    assert [verdict for verdict, *_ in judged(100e9, 10e9)] == [Verdict.ok], "two can't tell which is the odd one"
    assert judged(100e9, None) == [(Verdict.ok, "link 0", "100 GB/s"), (Verdict.fail, "link 1", "no data arrived")]
    wrong = Bandwidth(link="a - b", bytes_per_s=1e9, error="other data arrived than were sent")
    (finding,) = link_findings("links", [wrong], mend="mend", cure="cure")
    assert (finding.verdict, finding.mend) == (Verdict.fail, "cure")


def test_links_that_are_equally_slow_fail_by_a_floor():
    links = [Bandwidth(link=f"link {i}", bytes_per_s=speed) for i, speed in enumerate((1e9, 1.1e9, 3e9))]
    floor = gpu_link_floor(BETWEEN, HealthSettings(min_nic_gbytes_per_s=2.0), "cpu")
    healthy, *slow = link_findings(BETWEEN, links, mend="mend", cure="cure", floor=floor)
    assert (healthy.verdict, healthy.found) == (Verdict.ok, "3 GB/s")
    assert [(finding.where, finding.verdict) for finding in slow] == [
        ("link 0", Verdict.fail),
        ("link 1", Verdict.fail),
    ]
    assert slow[0].found == "1 GB/s; health.min_nic_gbytes_per_s=2 is needed"


def test_floors_of_links_by_kind_of_device():
    nothing, given = HealthSettings(), HealthSettings(min_link_gbytes_per_s=300.0)
    assert gpu_link_floor(INSIDE, nothing, "NVIDIA H200").gbytes_per_s == pytest.approx(180.0)
    assert gpu_link_floor(INSIDE, given, "NVIDIA H200").gbytes_per_s == 300.0
    assert gpu_link_floor(INSIDE, given, "unknown").gbytes_per_s == 300.0
    assert gpu_link_floor(INSIDE, nothing, "unknown") is None
    assert gpu_link_floor(BETWEEN, given, "NVIDIA H200") is None


def test_failures_stop_a_job_and_warnings_are_logged(caplog):
    slow = Finding("clock", "gpu-1", "late", Verdict.warn, "start chrony")
    with caplog.at_level(logging.WARNING):
        refuse_failures([Finding("ECC", "gpu-1", "none"), slow], logging.getLogger("test"))
    assert caplog.messages == ["gpu-1: clock: late; start chrony"]
    sick = Finding("ECC", "gpu-2", "2 errors", Verdict.fail, "reset it")
    with pytest.raises(InfrastructureError, match="gpu-2: ECC: 2 errors; reset it"):
        refuse_failures([slow, sick], logging.getLogger("test"))


def test_the_table_has_a_row_for_what_is_the_same_everywhere():
    findings = [Finding("ECC", f"gpu-{i}", "no uncorrected errors") for i in range(6)]
    findings.append(Finding("ECC", "gpu-6", "2 errors [sic]", Verdict.fail, "reset it"))
    stream = io.StringIO()
    print_findings(findings, stream)
    lines = [line for line in stream.getvalue().splitlines() if "ECC" in line]
    assert len(lines) == 2
    assert "gpu-0, gpu-1, gpu-2, gpu-3 and 2 more" in lines[0]
    assert "2 errors [sic]" in lines[1], "what was found is no markup"
    assert "# 6 ok, 0 n/a, 0 warn, 1 fail" in stream.getvalue()
