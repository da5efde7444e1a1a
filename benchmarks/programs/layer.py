"""The MLP of a layer, forward and backward, on one device: each implementation checked as in a job, then timed in turn.

    PYTHONPATH=. python benchmarks/programs/layer.py [M_SHARD,K,N_SHARD ...] [--rows FILE]

Without other ranks nothing is sent: this shows that both kernels and their gradients are right together in one program,
and what they cost beside XLA's multiplies. One line for each row, and a row of the journal's format in FILE. Exits 1
if a check fails. For several devices use the job: problem.op=[mlp,mlp_grad].
"""

import argparse
import datetime
import json
import secrets
import sys

import jax
from jax.sharding import AxisType

from jobs.config.choices import Fault
from jobs.measure import inputs, timing
from jobs.measure.check import Subject, check
from jobs.measure.operations import OPERATIONS
from jobs.measure.programs import Request, build
from jobs.records.case import Case
from jobs.records.check import Check
from jobs.records.op import Op
from jobs.records.row import BASELINE, Row, spreads
from jobs.results.disk.json_safe import json_safe

LENGTH, REPEATS, BURSTS, NUM_SETS = 8, 2, 6, 2
IMPLEMENTATIONS = ("mosaic_gpu", "ppermute", "xla", "xla_cublas", "xla_sharded", "local", "local_cublas")


def measure(case, mesh, implementations):
    """Rows of one case."""
    example = OPERATIONS[case.op].operands(case, mesh, 0, 0)
    built, rows = {}, {}
    for name in implementations:
        request = Request(name if name == "mosaic_gpu" else BASELINE, name)
        program = build(request, case, mesh, example, chain_length=LENGTH)
        subject = Subject(program, case, mesh, 0, Fault.none)
        found = check(subject, calls=3, num_sets=NUM_SETS, chain_length=LENGTH, seed=secrets.randbits(30))
        rows[name] = {
            "case": case,
            "implementation": program.opened.implementation,
            "requested": request.requested,
            "reason": program.opened.reason,
            "config": program.opened.config,
            "check": Check.of_ranks([found]),
        }
        if found.passed:
            built[name] = program, [program.draw(case, mesh, 0, seed) for seed in range(NUM_SETS)]
            jax.block_until_ready(program.chain(built[name][1]))
    samples = {name: [] for name in built}
    for _ in range(BURSTS):
        for name, (program, sets) in built.items():
            options = {"count": 2, "calls_per_sample": LENGTH * REPEATS, "repeats": REPEATS, "align": lambda: None}
            samples[name].append(timing.time_chains(program.chain, sets, **options))
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    for name, fields in rows.items():
        samples_us = {"in_graph_us": [samples[name]]} if name in samples else {}
        yield Row(**fields, samples_us=samples_us, time=now, **spreads(samples_us))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=["1024,4096,14336", "8192,4096,1792"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--implementations", nargs="+", default=IMPLEMENTATIONS)
    parser.add_argument("--rows", type=argparse.FileType("w"))
    options = parser.parse_args()
    mesh = jax.make_mesh((1,), (inputs.AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    print(f"# {jax.devices()[0].device_kind}, jax {jax.__version__}; {LENGTH} dependent calls in a program", flush=True)
    failed = False
    for shape in options.shapes:
        m_shard, k, n_shard = map(int, shape.split(","))
        for op in (Op.mlp, Op.mlp_grad):
            sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard}
            case = Case(name="layer", **sizes, dtype=options.dtype, num_ranks=1, op=op)
            for row in measure(case, mesh, options.implementations):
                time = f"{row.headline_us:10.2f} us" if row.headline_us else "FAILED"
                error = f"error {row.check.relative_error:.2e} of {row.check.relative_tolerance:.2e}"
                print(f"{case} {row.implementation:12} {time} {row.check.num_wrong} wrong, {error}", flush=True)
                failed |= row.failed
                if options.rows:
                    options.rows.write(json.dumps(json_safe(row)) + "\n")
                    options.rows.flush()
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
