"""Queries to NVML through pynvml and the real calling convention; a stand-in replaces the driver's library."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from tests.paths import DATA, ROOT

STUB = DATA / "nvml_stub.c"
PROGRAM = """
import dataclasses, json, time
from jobs.health.domain import nvlink_domain
from jobs.health.examiner import Examiner

examiner = Examiner("10.0.0.1")
facts = examiner.facts(True)
deadline = time.monotonic() + 60
while facts.gpus and not examiner._watch._seen and time.monotonic() < deadline:
    time.sleep(0.01)
xids, error = examiner.xids()
domains = [nvlink_domain(host=facts.host, boot_id="boot", gpu=gpu) for gpu in facts.gpus]
print(json.dumps([dataclasses.asdict(facts), [dataclasses.asdict(xid) for xid in xids], error, domains]))
"""


def test_pynvml_has_every_name_that_is_used():
    for path in (ROOT / "jobs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pynvml":
                assert hasattr(pynvml, node.attr), f"{path}:{node.lineno}: {node.attr}"


@pytest.fixture(scope="module")
def nvml_folder(tmp_path_factory):
    """Folder of a libnvidia-ml.so.1 that knows two H200s."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", STUB], check=True)
    return folder


def ask(nvml_folder, **env):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(nvml_folder), **env}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_facts(nvml_folder):
    host, xids, error, domains = ask(nvml_folder)
    assert (host["driver_version"], host["cuda_version"], host["nvml_error"]) == ("580.1.2", "13.0", None)
    healthy, sick = host["gpus"]
    assert healthy == {
        "index": 0,
        "uuid": "GPU-0",
        "name": "NVIDIA H200",
        "compute_capability": "9.0",
        "memory_total_bytes": 140 * 2**30,
        "memory_used_bytes": 0,
        "processes": [],
        "ecc_enabled": True,
        "ecc_volatile": 0,
        "ecc_aggregate": 0,
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failed": False},
        "nvlinks": {"num_links": 18, "num_active": 18, "errors": {"replay": 0, "recovery": 0}},
        "fabric": {
            "state": "completed",
            "error": None,
            "cluster_uuid": "00000000-0000-0000-0000-000000000000",
            "clique_id": 7,
            "is_degraded": False,
        },
        "peers": {"1": "ok"},
        "is_mig": None,
        "unreadable": {"is_mig": "Function Not Found"},
    }
    assert sick["memory_used_bytes"] == 3 * 2**30
    assert sick["processes"] == [{"pid": 4242, "used_bytes": 3 * 2**30}]
    assert (sick["ecc_volatile"], sick["ecc_aggregate"]) == (2, 5)
    assert sick["remapped_rows"]["pending"]
    assert sick["nvlinks"] == {"num_links": 18, "num_active": 17, "errors": {"replay": 0, "recovery": 4}}
    assert sick["fabric"]["is_degraded"]
    assert sick["peers"] == {"0": "not supported"}
    assert (xids, error) == ([{"gpu_uuid": "GPU-1", "number": 79}], None)
    assert domains == ["boot", "boot"], "a fabric that ends in the host"


@pytest.mark.parametrize(
    ("visible", "indices"),
    [("1", [1]), ("GPU-1,0", [1, 0]), ("", []), ("0,none,1", [0])],
)
def test_gpus_that_are_visible(nvml_folder, visible, indices):
    host, *_ = ask(nvml_folder, CUDA_VISIBLE_DEVICES=visible)
    assert [gpu["index"] for gpu in host["gpus"]] == indices


def test_a_fabric_of_several_hosts(nvml_folder):
    *_, domains = ask(nvml_folder, STUB_CLUSTER="1")
    assert domains == ["11111111-1111-1111-1111-111111111111/7"] * 2


def test_no_driver(tmp_path):
    host, *_ = ask(tmp_path)
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a driver")
    assert (host["gpus"], host["nvml_error"], host["driver_version"]) == ([], None, None)
    assert host["boot_id"]
    assert host["versions"]["jax"] != "none"
