"""Whether every host runs the versions that the driver runs, before a gang is started on them."""

from __future__ import annotations

import time
from collections.abc import Callable

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.errors import InfrastructureError
from jobs.gang.answers import Answers
from jobs.gang.cluster import Cluster

PACKAGES = ("jax", "jaxlib", "ray", "numpy")
_TIMEOUT_S = 60.0
# The first task on a node makes the environment that scripts/submit.sh --install asks for.
_INSTALL_TIMEOUT_S = 600.0
_CURE = "install requirements.lock on every host, or submit with scripts/submit.sh --install"


def check_versions(cluster: Cluster) -> dict[str, str]:
    """The driver's versions of Python and of ``PACKAGES``, which every host that may get ranks has, too.

    Raises:
      InfrastructureError: a host has others, or doesn't say; it is named.
    """
    mine = _make_probe()()
    if missing := [name for name, version in mine.items() if version == "none"]:
        raise InfrastructureError(f"the driver's Python lacks {', '.join(missing)}; {_CURE}")
    if cluster.is_local:
        # Its workers run in the driver's own Python.
        return mine
    nodes = [node for node in cluster.nodes if node.num_gpus or not cluster.on_gpus]
    probe = ray.remote(num_cpus=0, max_retries=0)(_make_probe())
    refs = {
        index: probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)).remote()
        for index, node in enumerate(nodes)
    }
    timeout_s = _INSTALL_TIMEOUT_S if ray.get_runtime_context().runtime_env.get("pip") else _TIMEOUT_S
    answers, deadline = Answers(refs), time.monotonic() + timeout_s
    wrong = {}
    while (answer := answers.next(deadline)) is not None:
        if answer.error is not None:
            wrong[answer.key] = " ".join(str(answer.error).split())
        elif difference := _difference(mine, answer.value):
            wrong[answer.key] = difference
    wrong |= dict.fromkeys(answers.unfinished, f"no answer within {timeout_s:g} s")
    if wrong:
        named = "; ".join(f"host {nodes[i].host} ({nodes[i].ip}): {text}" for i, text in sorted(wrong.items()))
        raise InfrastructureError(f"hosts that don't run what the driver runs: {named}; {_CURE}")
    return mine


def _make_probe() -> Callable[[], dict[str, str]]:
    """Versions of a Python process, as a function that travels by value: a host may lack this project's code."""
    packages = PACKAGES

    def probe() -> dict[str, str]:
        import platform
        from importlib import metadata

        found = {"python": platform.python_version()}
        for name in packages:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = "none"
        return found

    return probe


def _difference(mine: dict[str, str], theirs: dict[str, str]) -> str:
    def comparable(name: str, version: str) -> str:
        # Patch releases of Python don't matter.
        return ".".join(version.split(".")[:2]) if name == "python" else version

    return ", ".join(
        f"{name} {theirs[name]} instead of {version}"
        for name, version in mine.items()
        if comparable(name, theirs[name]) != comparable(name, version)
    )
