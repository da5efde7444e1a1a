import json
import socket

import pytest

from jobs.config.choices import ClusterMode
from jobs.config.schema import ClusterSettings
from jobs.errors import InfrastructureError, UsageError
from jobs.gang.address import check_reachable, cluster_address
from jobs.gang.submission import submission_id
from tests.limits import without_waiting

AUTO, LOCAL, RAY = ClusterMode.auto, ClusterMode.local, ClusterMode.ray


@pytest.mark.parametrize(
    ("mode", "option", "variable", "address"),
    [
        (AUTO, None, None, None),
        (AUTO, None, "", None),
        (AUTO, None, "local", None),
        (AUTO, None, "10.0.0.1:6379", "10.0.0.1:6379"),
        (AUTO, "head:6379", "10.0.0.1:6379", "head:6379"),
        (LOCAL, None, "10.0.0.1:6379", None),
        (RAY, None, "auto", "auto"),
        (RAY, "[fd00::2]:6379", None, "[fd00::2]:6379"),
    ],
)
def test_address(monkeypatch, mode, option, variable, address):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert cluster_address(ClusterSettings(mode=mode, address=option)) == address


@pytest.mark.parametrize(
    ("mode", "option", "message"),
    [
        (RAY, None, "cluster.mode=ray needs cluster.address=host:port, or RAY_ADDRESS"),
        (RAY, "ray://head:10001", r"cluster.address=ray://head:10001 must be host:port .* scripts/submit.sh"),
        (AUTO, "http://head:8265", r"cluster.address=http://head:8265 must be host:port .* scripts/submit.sh"),
        (RAY, "head", "cluster.address=head must be host:port"),
        (RAY, "fd00::2:6379", "cluster.address=fd00::2:6379 must be host:port"),
        (LOCAL, "head:6379", "cluster.address=head:6379 contradicts cluster.mode=local"),
    ],
)
def test_refused_address(monkeypatch, mode, option, message):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UsageError, match=message):
        cluster_address(ClusterSettings(mode=mode, address=option))


def test_variable_is_named(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    with pytest.raises(UsageError, match="RAY_ADDRESS=http://head:8265 must be"):
        cluster_address(ClusterSettings())


def test_nobody_listens():
    refused = pytest.raises(InfrastructureError, match=r"can't use a Ray at 127.0.0.1:1: ConnectionRefusedError")
    with without_waiting(), refused:
        check_reachable("127.0.0.1:1", 200.0)


def test_listener_that_is_no_ray():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        silent = pytest.raises(
            InfrastructureError, match=rf"at {address}: no answer within cluster.connect_timeout_s=3"
        )
        with without_waiting(), silent:
            check_reachable(address, 3.0)


def test_submission_id(monkeypatch):
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    assert submission_id() is None
    config = {"runtime_env": {}, "metadata": {"job_submission_id": "bench-1", "job_name": "bench-1"}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(config))
    assert submission_id() == "bench-1"
