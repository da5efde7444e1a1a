"""Drivers that connect to a real cluster, from a folder where the cluster's workers would find none of their code."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.ray_cluster import ray_cluster
from tests.paths import ROOT

pytestmark = pytest.mark.slow

PRELUDE = """
import jax
import ray
from jobs.errors import JobError
from jobs.gang.capacity import default_num_ranks
from jobs.gang.cluster import connect
from jobs.gang.gang import Gang
from jobs.driver.hosts import refuse_unfit_hosts
from jobs.config.choices import ClusterMode
from jobs.config.schema import ClusterSettings
from jobs.config.choices import ClusterMode
from jobs.config.schema import ClusterSettings
from tests.limits import without_waiting

settings = ClusterSettings(setup_timeout_s=90)
"""
GANG = """
with connect(settings) as cluster:
    assert not cluster.is_local
    assert default_num_ranks(cluster, settings) == 4
    with Gang.start(cluster, settings, 2) as gang:
        assert gang.call("links", timeout_s=20, doing="asking") == ["gloo", "gloo"]
    num_cpus = ray.cluster_resources()["CPU"]
    jax.config.update("jax_num_cpu_devices", 3)  # raises where a backend is initialized

    @ray.remote
    def source():
        import jobs
        return jobs.__file__

    print(num_cpus, ray.get(source.remote()))
"""
VERSIONS = """
with connect(settings) as cluster:
    try:
        refuse_unfit_hosts(cluster)
    except JobError as error:
        print(error.exit_code, error)
"""
CONNECT = """
settings.connect_timeout_s = 8
with without_waiting():
    try:
        connect(settings)
    except JobError as error:
        print(error.exit_code, error)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    # The nodes have what looks like another numpy.
    site = tmp_path_factory.mktemp("site")
    metadata = site / "numpy-9.9.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 9.9.9\n")
    with ray_cluster(num_cpus=4, env={"PYTHONPATH": str(site)}) as cluster:
        yield cluster


def drive(cluster, body, folder, **env):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + body],
        cwd=folder,
        env={**cluster.env, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": cluster.address, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_code_travels_with_the_driver(cluster, tmp_path):
    num_cpus, source = drive(cluster, GANG, tmp_path).split()
    assert float(num_cpus) == 4
    assert Path(source).is_relative_to(cluster.temp_dir)


def test_other_versions_are_named_by_host(cluster, tmp_path):
    printed = drive(cluster, VERSIONS, tmp_path)
    assert printed.startswith("3 this job can't run here: ")
    assert "numpy 9.9.9 instead of " in printed
    assert "scripts/submit.sh --install" in printed


def test_wrong_token(cluster, tmp_path):
    printed = drive(cluster, CONNECT, tmp_path, RAY_AUTH_TOKEN="0" * 64)
    assert printed.startswith(f"3 can't use a Ray at {cluster.address}: it refuses this driver's token")


def test_port_of_the_dashboard(cluster, tmp_path):
    address = cluster.dashboard_url.removeprefix("http://")
    printed = drive(cluster, CONNECT, tmp_path, RAY_ADDRESS=address)
    assert printed.startswith(f"3 can't use a Ray at {address}: no answer within cluster.connect_timeout_s=8. ")
