"""Where the time of a call in a program goes: chains of dependent calls on two Hopper GPUs, part by part.

    python benchmarks/programs/chain_parts.py [--cpu] [item ...]      from the repository root

A chain is 16 calls in a row, as in ``jobs.bench``, or 46 of which a loop makes 45, three in its body: then XLA pays for
each call's start three times a program, not 46 times. For each shape and variant: median and least time per call over
interleaved runs, two programs back to back; then, from a profile of one program by itself, the device time per call of
each part, and the clock and power while they ran.
--cpu rehearses the script with ppermute in the kernel's place and no profile.
"""

import collections
import functools
import os
import pathlib
import re
import statistics
import tempfile
import threading
import time

import pair
from pair import found, kernel, make, sharded, specs

LENGTH, ROUNDS, NUM_SETS = 16, 14, 3
NUM_TURNS = 15  # of a loop
ITEMS = {
    "1024,4096,4096": ("parts", {"shape": (1024, 4096, 4096)}, {}),
    "4096,8192,7168": ("parts", {"shape": (4096, 8192, 7168)}, {}),
    "4096,4096,4096": ("parts", {"shape": (4096, 4096, 4096)}, {}),
    "2048,8192,7168": ("parts", {"shape": (2048, 8192, 7168)}, {}),
}
# Part of a chain, and the profiler's names of its kernels or copies.
PARTS = (
    ("multiply", re.compile(r"mosaic_gpu|nvjet|gemm", re.IGNORECASE)),
    ("all-gather", re.compile(r"nccl.*AllGather", re.IGNORECASE)),
    ("barrier", re.compile("MultiGpuBarrier")),
    ("addresses to the device", re.compile("MemcpyH2D")),
    ("copies of operands and results", re.compile("memcpy", re.IGNORECASE)),
    ("zeroing", re.compile("memset|broadcast", re.IGNORECASE)),
    ("the chain's own updates", re.compile("dynamic_update_slice|loop_|input_|wrapped_")),
)


def variants(shape):
    """(name, function of the shards or of (gathered lhs, rhs), compiler options) of each variant."""
    from cmkernel import hardware, mosaic_gpu, performance_model, ppermute, xla

    m_shard, k, n_shard = shape
    both = {
        "local": (xla.local, None),
        "xla": (functools.partial(xla.all_gather_then_dot, axis_name="x"), None),
    }
    if kernel() == "ppermute":
        return both | {"mosaic_gpu": (functools.partial(ppermute.ring_all_gather_matmul, axis_name="x"), None)}
    from jobs.measure import jax_ring

    config = performance_model.heuristic_config(
        m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=pair.NUM_RANKS, num_sms=hardware.num_sms()
    )
    ring_config = jax_ring.choose_config(m_shard=m_shard, k=k, n_shard=n_shard, num_sms=hardware.num_sms())
    return both | {
        "local, cuBLAS": (xla.local, {"xla_gpu_enable_triton_gemm": False}),
        "mosaic_gpu": (functools.partial(mosaic_gpu.ring_all_gather_matmul, axis_name="x", config=config), None),
        "mosaic_gpu, nothing sent": (lambda lhs, rhs: mosaic_gpu.gathered_matmul(lhs, rhs, config=config), None),
        "jax_ring": (functools.partial(jax_ring.all_gather_matmul, axis_name="x", config=ring_config), None),
    }


def chain(multiply):
    """``LENGTH`` calls in one program, each waiting for the last: as in ``jobs.measure.programs``."""
    import jax

    multiply = jax.jit(multiply)

    def run(lhs_sets, rhs_sets):
        lhs_sets = list(lhs_sets)
        out = multiply(lhs_sets[0], rhs_sets[0])
        for i in range(1, LENGTH):
            turn = i % NUM_SETS
            lhs_sets[turn] = lhs_sets[turn].at[:1, :8].add(out[:1, :8] * 0)
            out = multiply(lhs_sets[turn], rhs_sets[turn])
        return out

    return run


def loop(multiply):
    """``NUM_SETS * NUM_TURNS + 1`` calls in one program, all but the last in a loop, each waiting for the last."""
    import jax
    import jax.numpy as jnp

    multiply = jax.jit(multiply)

    def run(lhs_sets, rhs_sets):
        def turn(_, carry):
            lhs_sets, last = list(carry[0]), carry[1]
            for i in range(NUM_SETS):
                lhs_sets[i] = lhs_sets[i].at[:1, :8].add(last)
                last = multiply(lhs_sets[i], rhs_sets[i])[:1, :8] * 0
            return tuple(lhs_sets), last

        start = tuple(lhs_sets), jnp.zeros((1, 8), lhs_sets[0].dtype)
        lhs_sets, last = jax.lax.fori_loop(0, NUM_TURNS, turn, start)
        return multiply(lhs_sets[0].at[:1, :8].add(last), rhs_sets[0])

    return run


# Name of the form: (the program, how many calls it makes, the set of the last one).
FORMS = {
    "in a chain": (chain, LENGTH, (LENGTH - 1) % NUM_SETS),
    "in a loop": (loop, NUM_SETS * NUM_TURNS + 1, 0),
}
LOOPED = ("local", "local, cuBLAS", "xla", "mosaic_gpu", "jax_ring")


def item_parts(shape):
    import jax
    import jax.numpy as jnp

    if kernel() == "ppermute":
        shape = tuple(size // 16 for size in shape)
    m_shard, k, n_shard = shape
    row, column = specs()
    sets = range(NUM_SETS)
    shards = [make(i, (pair.NUM_RANKS * m_shard, k), row) for i in sets]
    columns = [make(10 + i, (k, pair.NUM_RANKS * n_shard), column) for i in sets]
    gather = sharded(lambda a: jax.lax.all_gather(a, "x", axis=0, tiled=True)[None], row, jax.P("x", None, None))
    gathered = [gather(a).addressable_shards[0].data[0] for a in shards]
    local_columns = [b.addressable_shards[0].data for b in columns]
    align = functools.partial(sharded(lambda a: jax.lax.psum(a, "x"), jax.P("x"), jax.P()), jnp.ones(pair.NUM_RANKS))
    meter = Meter()
    runs = {}
    for name, (multiply, options) in variants(shape).items():
        for form, (program_of, num_calls, last) in FORMS.items():
            if form == "in a loop" and name not in LOOPED:
                continue
            if name.startswith("local") or name.endswith("nothing sent"):
                program, operands = jax.jit(program_of(multiply), compiler_options=options), (gathered, local_columns)
            else:
                program, operands = sharded(program_of(multiply), (row, column), column), (shards, columns)
            expected = jax.jit(jnp.dot)(gathered[last], local_columns[last]).astype(jnp.float32)
            out = program(*operands).addressable_shards[0].data.astype(jnp.float32)
            error = float(jnp.linalg.norm(out - expected) / jnp.linalg.norm(expected))
            assert error < 4e-3, (name, form, error)
            runs[name, form] = functools.partial(program, *operands), num_calls
    times, readings = collections.defaultdict(list), collections.defaultdict(list)
    for _ in range(ROUNDS):
        for name, (run, num_calls) in runs.items():
            align().block_until_ready()
            began = time.perf_counter()
            run()
            run().block_until_ready()
            ended = time.perf_counter()
            times[name].append((ended - began) * 1e6 / num_calls / 2)
            readings[name] += meter.between(began, ended)
    for name, (run, num_calls) in runs.items():
        print_row(*name, times[name], readings[name], profiled(run, align, num_calls))


def print_row(name, form, times, readings, parts):
    words = [f"{name}: {form} {statistics.median(times):.1f} us (least {min(times):.1f})"]
    if readings:
        clock, power = (statistics.mean(values) for values in zip(*readings, strict=True))
        words.append(f"{clock:.0f} MHz {power:.0f} W")
    words += [f"{part} {us:.2f}" for part, us in parts.items()]
    found(", ".join(words))


def profiled(run, align, num_calls):
    """Device time per call of each part, in microseconds, and of nothing at all, in one program by itself."""
    import jax

    align().block_until_ready()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run().block_until_ready()
        events = []
        for path in pathlib.Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
                if plane.name.startswith("/device:GPU"):
                    streams = (line for line in plane.lines if line.name.startswith("Stream"))
                    events += [(e.start_ns, e.start_ns + e.duration_ns, e.name) for s in streams for e in s.events]
    parts, idle, busy_until = collections.defaultdict(float), 0.0, None
    for start, end, name in sorted(events):
        part = next((part for part, pattern in PARTS if pattern.search(name)), "other")
        parts[part] += (end - start) / 1e3 / num_calls
        if busy_until is not None and start > busy_until:
            idle += (start - busy_until) / 1e3 / num_calls
        busy_until = max(busy_until or 0, end)
    return {**parts, "idle": idle} if events else {}


class Meter:
    """Clock and power of this rank's GPU, read every 5 ms."""

    def __init__(self):
        self.samples = []
        if kernel() != "ppermute":
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(os.environ["CUDA_VISIBLE_DEVICES"]))
        while True:
            clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
            power_w = pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3
            self.samples.append((time.perf_counter(), clock, power_w))
            time.sleep(0.005)

    def between(self, began, ended):
        return [(clock, power_w) for when, clock, power_w in self.samples if began <= when <= ended]


if __name__ == "__main__":
    pair.main(__file__, ITEMS, globals(), item_s=75, total_s=300, alone=ITEMS)
