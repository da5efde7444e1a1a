"""Check and time variants of the ring kernels on two Hopper GPUs, one process each.

    PYTHONPATH=. python benchmarks/programs/kernel_variants.py [--only SUBSTRING] [--items FILE] [--budget SECONDS]

Prints a row for each (shape, variant): verdict of the checks, and the maximum over ranks of the median kernel time.
A variant that hangs is killed after ITEM_TIMEOUT_S, and the rest goes on in a new pair of processes.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
NUM_RANKS = 2
START_TIMEOUT_S, ITEM_TIMEOUT_S = 60, 30

MAIN = [(1024, 4096, 4096), (256, 8192, 3584), (2048, 8192, 7168), (4096, 4096, 4096), (4096, 8192, 7168)]
LLAMA = [
    (1024, 4096, 3072),
    (1024, 4096, 14336),
    (1024, 8192, 5120),
    (1024, 8192, 28672),
    (256, 4096, 3072),
    (256, 8192, 5120),
    (4096, 4096, 3072),
    (4096, 4096, 14336),
    (4096, 8192, 5120),
    (4096, 8192, 28672),
]
ODD = [(1000, 4104, 4200), (136, 1088, 1216), (8, 64, 64)]

W128 = {"tile_m": 64, "tile_n": 128, "wg_dimension": "M", "max_concurrent_steps": 6}
W192 = {"tile_m": 64, "tile_n": 192, "wg_dimension": "M", "max_concurrent_steps": 4}
SMALL = {"num_comm_ctas": 20, "num_chunks": 16}
VARIANTS = {
    (1024, 4096, 4096): [
        {"num_comm_ctas": 0},
        {"num_comm_ctas": 2},
        {"num_chunks": 8},
        {"wait_ahead": True},
        {"wait_ahead": True, "num_chunks": 16},
        {"tile_m": 128, "tile_n": 128, "wg_dimension": "N"},
    ],
    (256, 8192, 3584): [
        {**W128, **SMALL, "wait_ahead": False},
        {**W128, **SMALL, "wait_ahead": True, "num_chunks": 32},
        {**W128, "num_comm_ctas": 8, "num_chunks": 16, "wait_ahead": True},
        {**W128, "num_comm_ctas": 0, "num_chunks": 16, "wait_ahead": True},
        {"num_comm_ctas": 20, "num_chunks": 16, "wait_ahead": True},
    ],
    (2048, 8192, 7168): [{"num_comm_ctas": 0}, {"num_comm_ctas": 8}, {"wait_ahead": True}],
    (4096, 4096, 4096): [{"num_comm_ctas": 0}, {"num_comm_ctas": 8}],
    (4096, 8192, 7168): [{"num_comm_ctas": 0}, {"grid_tile_width": 16}],
    (1024, 4096, 3072): [{}, {**W128}, {**W192, "num_comm_ctas": 0}],
    (1024, 8192, 5120): [{}, {**W192}],
    (256, 4096, 3072): [{**W128, "num_comm_ctas": 0, "num_chunks": 16}],
    (256, 8192, 5120): [{**W128}, {**W128, "num_comm_ctas": 0, "num_chunks": 16}],
}


def work() -> list[dict]:
    """Most wanted first."""
    items = []

    def add(shape, method, options=None, dtype="bfloat16"):
        items.append({"shape": shape, "method": method, "options": options or {}, "dtype": dtype})

    for shape in MAIN:
        for method in ("fast", "bound", "bound_cublas", "simple", "fast_local"):
            add(shape, method)
        for options in VARIANTS.get(shape, ()):
            add(shape, "variant", options)
    add(MAIN[0], "fast", dtype="float16")
    for shape in ODD:
        add(shape, "fast")
        add(shape, "variant", {"num_comm_ctas": 2, "wait_ahead": True})
        add(shape, "variant", {"num_comm_ctas": 0, "tile_m": 64, "tile_n": 64, "max_concurrent_steps": 2})
    for shape in LLAMA:
        for method in ("fast", "bound", "bound_cublas"):
            add(shape, method)
        for options in VARIANTS.get(shape, ()):
            add(shape, "variant", options)
    return items


# The parent.


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="only items whose JSON contains this")
    parser.add_argument("--items", type=pathlib.Path, help="JSON list of items to run instead: shape, method, options")
    parser.add_argument("--budget", type=float, default=340)
    options = parser.parse_args()
    items = work() if options.items is None else json.loads(options.items.read_text())
    items = [{"options": {}, "dtype": "bfloat16", **item} for item in items]
    items = [item for item in items if options.only in json.dumps(item)]
    deadline = time.monotonic() + options.budget
    start, num_bad = 0, 0
    while start < len(items) and time.monotonic() < deadline:
        start, bad = run_pair(items, start, deadline)
        num_bad += bad
    print(f"# items done {start} of {len(items)}; bad {num_bad}", flush=True)
    return int(num_bad > 0 or start < len(items))


def run_pair(items: list[dict], start: int, deadline: float) -> tuple[int, int]:
    """Run the items from ``start`` on; returns where to go on, and how many were bad."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "items.json").write_text(json.dumps(items[start:]))
    ranks, logs = [], []
    for rank in range(NUM_RANKS):
        env = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": str(rank),
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1",
            "PYTHONPATH": os.environ.get("PYTHONPATH") or str(HERE),
            "PYTHONUNBUFFERED": "1",
        }
        logs.append(open(folder / f"log{rank}", "w+"))  # noqa: SIM115
        command = [sys.executable, __file__, "--rank", str(rank), str(port), str(folder)]
        ranks.append(
            subprocess.Popen(command, env=env, stdout=logs[-1], stderr=subprocess.STDOUT, start_new_session=True)
        )
    rows: list[list[dict]] = [[] for _ in range(NUM_RANKS)]
    shown, bad = 0, 0
    limit = time.monotonic() + START_TIMEOUT_S
    try:
        while True:
            ended = all(process.poll() is not None for process in ranks)
            for rank in range(NUM_RANKS):
                path = folder / f"rows{rank}"
                if path.exists():
                    lines = path.read_text().splitlines(keepends=True)
                    rows[rank] = [json.loads(line) for line in lines if line.endswith("\n")]
            while shown < min(map(len, rows)):
                bad += show([rows[rank][shown] for rank in range(NUM_RANKS)])
                shown += 1
                limit = time.monotonic() + ITEM_TIMEOUT_S
            if ended or time.monotonic() > min(limit, deadline):
                break
            time.sleep(0.1)
    finally:
        for process in ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    done = start + shown
    if done < len(items) and time.monotonic() < deadline:
        what = "ended" if ended else "HUNG"
        print(f"# {what} in {json.dumps(items[done])}; rows of the ranks: {[len(r) for r in rows]}", flush=True)
        for rank, log in enumerate(logs):
            log.seek(0)
            print(f"# ---- log of rank {rank}\n{log.read()[-2500:]}", flush=True)
        return done + 1, bad + 1
    return done, bad


def show(rows: list[dict]) -> int:
    item = rows[0]["item"]
    name = item["method"] + (" " + " ".join(f"{k}={v}" for k, v in item["options"].items()) if item["options"] else "")
    label = f"{item['shape']!s:20} {item['dtype'][:5]:5} {name:75}"
    errors = [row["error"] for row in rows if "error" in row]
    if errors:
        print(f"{label} ERROR {errors[0][-1500:]}", flush=True)
        return 1
    good = all(row["ok"] for row in rows)
    times = [statistics.median(row["times_us"]) for row in rows if row.get("times_us")]
    least = [min(row["times_us"]) for row in rows if row.get("times_us")]
    took = max(row["took_s"] for row in rows)
    shown = (
        f"{max(times):9.2f} us (ranks {', '.join(f'{t:.1f}' for t in times)}; least {max(least):.1f})"
        if times
        else "no time"
    )
    config = rows[0].get("config", "")
    print(f"{label} {'ok   ' if good else 'WRONG'} {shown} {rows[0]['note']} {config} [{took:.1f} s]", flush=True)
    if not good:
        for rank, row in enumerate(rows):
            print(f"    rank {rank}: {row['note']}", flush=True)
    return int(not good)


# A rank.


def run_rank(rank: int, port: int, folder: pathlib.Path) -> None:
    import jax

    jax.distributed.initialize(
        f"127.0.0.1:{port}", NUM_RANKS, rank, local_device_ids=[0], cluster_detection_method="deactivate"
    )
    items = json.loads((folder / "items.json").read_text())
    data = None
    with open(folder / f"rows{rank}", "w") as out:
        for item in items:
            began = time.monotonic()
            try:
                shape, dtype = tuple(item["shape"]), item["dtype"]
                if data is None or (data.shape, data.dtype) != (shape, dtype):
                    data = None
                    jax.clear_caches()
                    data = Data(shape, dtype)
                row = run_item(item, data)
            except Exception:
                row = {"error": traceback.format_exc()}
            row |= {"item": item, "took_s": time.monotonic() - began}
            out.write(json.dumps(row) + "\n")
            out.flush()
            # Executables with symmetric buffers each hold a window over the arena: drop them before the next.
            jax.clear_caches()


class Data:
    """Operands of one shape: four sets of integers and one of normals, with what they must give."""

    def __init__(self, shape, dtype):
        import jax
        import jax.numpy as jnp
        from jax.sharding import NamedSharding
        from jax.sharding import PartitionSpec as P

        from cmkernel import reference

        self.shape, self.dtype = shape, dtype
        m_shard, k, n_shard = shape
        rank = jax.process_index()
        self.rank = rank
        self.mesh = jax.make_mesh((NUM_RANKS,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        key = jax.random.key(hash(shape) % 2**31)
        integers = jax.jit(lambda key, shape: jax.random.randint(key, shape, -4, 5).astype(dtype), static_argnums=1)
        normals = jax.jit(lambda key, shape: jax.random.normal(key, shape, jnp.float32).astype(dtype), static_argnums=1)
        fold = jax.random.fold_in
        rhs_key, lhs_key = fold(key, rank), fold(key, 100)
        rhs = [integers(fold(rhs_key, 0), (k, n_shard)), normals(fold(rhs_key, 1), (k, n_shard))]
        lhs = [integers(fold(lhs_key, i), (NUM_RANKS * m_shard, k)) for i in range(4)]
        lhs.append(normals(fold(lhs_key, 9), (NUM_RANKS * m_shard, k)))
        self.gathered = lhs
        self.rhs = rhs
        oracle = jax.jit(reference.oracle)
        self.expected = [oracle(a, rhs[0]).astype(dtype) for a in lhs[:-1]] + [oracle(lhs[-1], rhs[1])]

        def to_global(shard, spec, global_shape):
            sharding = NamedSharding(self.mesh, spec)
            return jax.make_array_from_single_device_arrays(global_shape, sharding, [shard])

        shards = [jnp.array(a[rank * m_shard : (rank + 1) * m_shard]) for a in lhs]
        self.row, self.column = P("x", None), P(None, "x")
        global_rhs = [to_global(b, self.column, (k, NUM_RANKS * n_shard)) for b in rhs]
        self.arguments = [
            (to_global(a, self.row, (NUM_RANKS * m_shard, k)), global_rhs[i == 4]) for i, a in enumerate(shards)
        ]
        jax.block_until_ready((self.arguments, self.expected))

    def judge(self, results):
        """(ok, note) of the results for the five sets."""
        import jax
        import jax.numpy as jnp

        different = jax.jit(lambda a, b: jnp.sum(a != b, dtype=jnp.int32))
        relative = jax.jit(lambda a, b: jnp.linalg.norm(a.astype(jnp.float32) - b) / jnp.linalg.norm(b))
        pairs = zip(results[:-1], self.expected[:-1], strict=True)
        wrong = [int(different(result, expected)) for result, expected in pairs]
        error = float(relative(results[-1], self.expected[-1]))
        ok = not any(wrong) and error < (4e-3 if self.dtype == "bfloat16" else 6e-4)
        return ok, f"different={sum(wrong) if not any(wrong) else wrong} relative={error:.1e}"


def run_item(item: dict, data: Data) -> dict:
    import jax
    import jax.numpy as jnp

    from cmkernel import hardware, mosaic_gpu, mosaic_gpu_simple, performance_model, xla
    from cmkernel.config import KernelConfig, MatmulDimension

    m_shard, k, n_shard = data.shape
    method, options = item["method"], dict(item["options"])
    if "wg_dimension" in options:
        options["wg_dimension"] = MatmulDimension[options["wg_dimension"]]
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard}
    config, compiler_options, is_ring = None, None, method in ("fast", "variant", "simple")
    if method in ("fast", "fast_local"):
        config = performance_model.heuristic_config(**sizes, num_ranks=NUM_RANKS, num_sms=hardware.num_sms())
    elif method == "variant":
        config = KernelConfig(**options)
    elif method == "simple":
        config = performance_model.simple_heuristic_config(**sizes)
    if is_ring:
        module = mosaic_gpu_simple if method == "simple" else mosaic_gpu
        function = jax.jit(
            jax.shard_map(
                functools.partial(module.ring_all_gather_matmul, axis_name="x", config=config),
                mesh=data.mesh,
                in_specs=(data.row, data.column),
                out_specs=data.column,
                check_vma=False,
            )
        )
        arguments = data.arguments
    elif method == "fast_local":
        rank = data.rank
        function = jax.jit(functools.partial(mosaic_gpu.gathered_matmul, rank=rank, config=config))
        arguments = []
        for i, lhs in enumerate(data.gathered):
            shards = jnp.split(lhs, NUM_RANKS)
            received = jnp.stack([shards[(rank + s) % NUM_RANKS] for s in range(1, NUM_RANKS)])
            arguments.append((shards[rank], data.rhs[i == 4], received))
    else:
        if method == "bound_cublas":
            compiler_options = {"xla_gpu_enable_triton_gemm": False}
        function = jax.jit(xla.local, compiler_options=compiler_options)
        arguments = [(lhs, data.rhs[i == 4]) for i, lhs in enumerate(data.gathered)]
    # Fresh data back to back, nothing waited for in between: stale scratch memory or counts would show.
    results = [function(*pair) for pair in arguments]
    local = [result.addressable_shards[0].data for result in results]
    jax.block_until_ready(local)
    ok, note = data.judge(local)
    if is_ring and ok:
        # Same operands, same order of additions: any difference is a race.
        differences = jnp.zeros((), jnp.int32)
        for _ in range(10):
            again = function(*arguments[-1]).addressable_shards[0].data
            differences += jnp.sum(again != local[-1], dtype=jnp.int32)
        if int(differences):
            ok, note = False, f"{note}; 10 repeats differ in {int(differences)}"
    row = {"ok": ok, "note": note}
    if config is not None and method != "variant":
        row["config"] = f"{config.cta_tile_m}x{config.cta_tile_n}x{config.max_concurrent_steps}" + (
            f" comm={config.num_comm_ctas} chunks={config.num_chunks} ahead={config.wait_ahead:d}"
            if method[0] == "f"
            else ""
        )
    if ok:
        from jax.experimental.mosaic.gpu import profiler

        _, iterations = profiler.measure(function, aggregate=False, iterations=20)(*arguments[-1])
        times = [sum(t for name, t in one if "mosaic_gpu_kernel" in name or not config) * 1e3 for one in iterations]
        row["times_us"] = times
        if not all(times):
            row["note"] += f" kernels: {[name for name, _ in iterations[0]]}"
    return row


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "--rank":
        run_rank(int(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4]))
    else:
        sys.exit(main())
