"""Facts about the host that the tests run on."""

from pathlib import Path

import pytest

from jobs.health.host import oom_kills, resolve


@pytest.mark.parametrize(("name", "known"), [("localhost", True), ("127.0.1.1", True), ("192.0.2.1", False)])
def test_a_name_and_whether_its_address_is_of_this_host(name, known):
    ip, is_own = resolve(name)
    assert ip in (("127.0.0.1", "::1") if name == "localhost" else (name,))
    assert is_own is known


def test_a_name_without_an_address():
    assert resolve("no-such-host.invalid") == (None, False)


def test_the_kernel_counts_the_processes_that_it_killed():
    kills = oom_kills()
    assert kills is None or kills >= 0
    assert (kills is None) == ("oom_kill " not in Path("/proc/vmstat").read_text())
