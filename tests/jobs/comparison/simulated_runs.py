"""Runs with the noise of real ones, nested: of the run, of a case in it, of a burst, of a sample."""

import dataclasses
import json

import numpy as np

from jobs.records.case import Case
from jobs.records.row import Row
from jobs.records.statistics import Spread
from jobs.results.disk.json_safe import json_safe
from tests.jobs.run_rows import PASSED

ENVIRONMENT = {
    "git_sha": "0123456789abcdef",
    "versions": {"python": "3.12.3", "jax": "0.11.2"},
    "members": [
        {"device_kind": "NVIDIA H200", "driver_version": "580.1", "versions": {"jax": "0.11.2", "nccl": "2.30.7"}}
        for _ in range(2)
    ],
}


@dataclasses.dataclass(frozen=True)
class Noise:
    """Standard deviations, relative."""

    run: float = 0.007
    """Common to all cases of a run."""
    case: float = 0.007
    """Specific to a case in a run."""
    burst: float = 0.005
    sample: float = 0.005
    """Exponentially distributed: times have a long tail on one side."""


def samples(rng, times_us, noise, *, ranks=2, bursts=6, length=2):
    """One run's ``[rank][burst][sample]`` of each of ``times_us``."""
    of_run = noise.run * rng.normal()
    found = []
    for time_us in times_us:
        logs = np.log(time_us) + of_run + noise.case * rng.normal() + noise.burst * rng.normal(size=(1, bursts, 1))
        found.append(np.exp(logs + noise.sample * rng.exponential(size=(ranks, bursts, length))).tolist())
    return found


def row(times, *, m_shard=1024, implementation="mosaic_gpu", name="article", **changes):
    """A row that has measured ``times``: samples by metric."""
    case = Case(name=name, m_shard=m_shard, k=4096, n_shard=4096, dtype="bfloat16", num_ranks=2)
    spreads = {metric: Spread.over([float(np.median(np.ravel(rank))) for rank in t]) for metric, t in times.items()}
    measured = Row(
        case=case, implementation=implementation, requested=implementation, check=PASSED, samples_us=times, **spreads
    )
    return dataclasses.replace(measured, **changes)


def without_time(reference, *, check=None, reason=None):
    """The same case with a failed check, or with none."""
    rest = {"implementation": reference.implementation, "requested": reference.requested}
    return Row(case=reference.case, check=check, reason=reason, **rest)


def write_run(folder, rows, *, environment=ENVIRONMENT, chain_length=16):
    """A run directory as a job leaves it."""
    folder.mkdir(parents=True)
    lines = [json.dumps(json_safe(row)) + "\n" for row in rows]
    (folder / "results.jsonl").write_text("".join(lines))
    if environment is not None:
        (folder / "environment.json").write_text(json.dumps(environment))
    (folder / "config.yaml").write_text(f"timing:\n  chain_length: {chain_length}\n  chain_repeats: 4\n")
    return folder
