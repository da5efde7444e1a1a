"""Copies run directories with no more in them than jobs.compare reads, to be shipped as the data of tests.

    PYTHONPATH=. python benchmarks/programs/strip_runs.py --to tests/jobs/data/pairs_2xH200 --first 20 ~/pairs/*

They become 20, 21, ... there. Samples keep 3 digits behind the point (nanoseconds); hosts, users, paths are left out.
"""

import argparse
import dataclasses
import json
from pathlib import Path

from omegaconf import OmegaConf

from jobs.results.disk.json_safe import json_safe
from jobs.results.disk.recorded_run import read_run

MEMBER = ("device_kind", "driver_version", "versions")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories, in their order")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    options = parser.parse_args()
    for number, path in enumerate(options.runs, options.first):
        strip(read_run(path), options.to / f"{number:02d}")


def strip(run, folder):
    folder.mkdir(parents=True)
    lines = [json.dumps(json_safe(stripped(row)), separators=(",", ":")) + "\n" for row in run.rows]
    (folder / "results.jsonl").write_text("".join(lines))
    kept = {"git_sha": run.environment.git_sha, "versions": run.environment.versions}
    kept["members"] = [{name: getattr(member, name) for name in MEMBER} for member in run.members]
    (folder / "environment.json").write_text(json.dumps(kept, indent=1) + "\n")
    (folder / "config.yaml").write_text(OmegaConf.to_yaml({"timing": OmegaConf.create(run.config).timing}))


def stripped(row):
    samples = {
        metric: [[[round(value, 3) for value in burst] for burst in rank] for rank in ranks]
        for metric, ranks in row.samples_us.items()
    }
    return dataclasses.replace(row, samples_us=samples, kernels_us={}, derived=None)


if __name__ == "__main__":
    main()
