"""The doctor on real Rays, and a job that refuses what it finds; a library in NVML's place reports the GPUs."""

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from jobs.config.choices import ClusterMode
from jobs.config.schema import ClusterSettings
from jobs.driver.examination import LINKS, measure_links
from jobs.gang.gang import Gang
from tests.integration.bench_process import QUICK, ROOT, Finished, environment, run

STUB = ROOT / "tests" / "jobs" / "data" / "nvml_stub.c"


def examine(*overrides, timeout_s=300, **env):
    done = subprocess.run(
        [sys.executable, "-m", "jobs.doctor", *overrides],
        cwd=ROOT,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def findings(finished):
    report = json.loads((Path(finished.result["run_dir"]) / "doctor.json").read_text())
    return {(finding["check"], finding["where"]): finding for finding in report["findings"]}


def test_a_host_without_gpus(tmp_path):
    finished = examine(f"run_dir={tmp_path / 'run'}", f"results.junit={tmp_path / 'junit.xml'}")
    assert finished.code == 0, finished.stderr
    assert (finished.result["status"], finished.result["error"]) == ("ok", None)
    report = json.loads((tmp_path / "run" / "doctor.json").read_text())
    assert report["command"].startswith("python -m jobs.doctor run_dir=")
    (host,) = report["hosts"]
    assert host["versions"]["jax"] == "0.11.2"
    assert host["shm_bytes"] > 0
    assert findings(finished)["GPUs", "the cluster"]["found"] == "none: ranks run on CPUs"
    assert {finding["check"] for finding in report["findings"]} == {
        *("versions", "host name", "clock", "/dev/shm", "locked memory", "GPUs", "TCP"),
    }
    for finding in report["findings"]:
        assert finding["check"] in finished.stdout
        assert finding["verdict"] in ("ok", "n/a", "warn")
    assert "0 fail" in finished.stdout
    cases = ET.parse(tmp_path / "junit.xml").getroot()[0]
    assert [case.get("classname") for case in cases] == [*(finding["check"] for finding in report["findings"]), "job"]


@pytest.mark.slow
def test_usage_and_infrastructure_errors_have_their_codes(tmp_path):
    wrong = examine("cluster.num_ranks=0")
    assert (wrong.code, wrong.result["status"]) == (2, "usage_error")
    assert "cluster.num_ranks=0 must be greater than 0" in wrong.result["error"]
    nowhere = examine("cluster=ray", "cluster.address=127.0.0.1:1", f"run_dir={tmp_path / 'run'}")
    assert (nowhere.code, nowhere.result["status"]) == (3, "infrastructure_error")
    assert "can't use a Ray at 127.0.0.1:1" in nowhere.result["error"]
    large = examine("cluster=local", "cluster.num_ranks=1000", f"run_dir={tmp_path / 'run'}")
    assert large.code == 3
    assert "cluster.num_ranks=1000 must be at most" in large.result["error"]


@pytest.mark.slow
def test_it_is_submitted_like_a_job(ray_head, tmp_path):
    script = str(ROOT / "scripts" / "submit.sh")
    done = subprocess.run(
        [script, "--address", ray_head.dashboard_url, "--job", "jobs.doctor", "--", f"run_dir={tmp_path / 'run'}"],
        env=environment(**ray_head.env),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "that of the job's driver" in done.stdout
    assert json.loads((tmp_path / "run" / "doctor.json").read_text())["hosts"]


@pytest.mark.slow
def test_links_between_ranks(local_ray):
    """Pairs of ranks that exchange over gloo; what they find doesn't depend on the backend."""
    settings = ClusterSettings(mode=ClusterMode.local, setup_timeout_s=90)
    with Gang.start(local_ray, settings, 3, session=LINKS) as gang:
        ((kind, links),) = measure_links(gang, num_bytes=2**20, repeats=3).items()
        host = gang.members[0].host
    assert kind == "GPU links inside hosts"
    assert sorted(link.link for link in links) == [f"{host} rank {a} - {b}" for a, b in ((0, 1), (0, 2), (1, 2))]
    assert all(link.bytes_per_s > 0 and link.error is None for link in links)


@pytest.fixture(scope="module")
def nvml_folder(tmp_path_factory):
    """Folder of a libnvidia-ml.so.1 that knows two H200s, the second one sick."""
    compiler = shutil.which("cc")
    if compiler is None or Path("/dev/nvidiactl").exists():
        pytest.skip("needs a C compiler, and no real NVML")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", STUB], check=True)
    return str(folder)


@pytest.mark.slow
def test_a_sick_gpu_is_found(nvml_folder, tmp_path):
    finished = examine("cluster=local", f"run_dir={tmp_path / 'run'}", LD_LIBRARY_PATH=nvml_folder)
    assert (finished.code, finished.result["status"]) == (1, "check_failed")
    found = findings(finished)
    host = json.loads((tmp_path / "run" / "doctor.json").read_text())["hosts"][0]["host"]
    failed = {check for (check, where), finding in found.items() if finding["verdict"] == "fail"}
    assert failed == {"memory", "ECC", "remapped rows", "peer access", "XIDs"}
    assert all(found[check, f"{host} GPU 1"]["mend"] for check in failed)
    assert found["ECC", f"{host} GPU 0"]["verdict"] == "ok"
    assert found["XIDs", f"{host} GPU 1"]["found"] == "XID 79"
    assert found["GPU links", "the cluster"]["verdict"] == "n/a", "no rank touches a sick GPU"


@pytest.mark.slow
def test_a_job_refuses_a_sick_gpu_before_it_measures(nvml_folder, tmp_path):
    finished = run(*QUICK, "cluster=local", f"run_dir={tmp_path / 'run'}", LD_LIBRARY_PATH=nvml_folder)
    assert (finished.code, finished.result["rows"]) == (3, 0)
    error = finished.result["error"]
    assert "(GPU 1): ECC: 2 uncorrected errors since the driver was loaded; nvidia-smi --gpu-reset" in error
    assert "(GPU 0)" not in error
    assert "NVLink: 17 of 18 links active" in (tmp_path / "run" / "bench.log").read_text(), "a warning"
