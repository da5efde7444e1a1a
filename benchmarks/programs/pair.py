"""Items that each run in a pair of processes, a Hopper GPU each: what the programs beside this one have in common."""

import concurrent.futures
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUM_RANKS = 2


def main(file, items, functions, *, item_s, total_s, alone=()):
    """Run the items named on the command line, or all; two pairs at a time, but for those in ``alone``.

    An item is (function, arguments, environment). ``--cpu`` rehearses the script itself.
    """
    if sys.argv[1:2] == ["--rank"]:
        return rank_main(int(sys.argv[2]), int(sys.argv[3]), items[sys.argv[4]], functions)
    cpu = "--cpu" in sys.argv
    names = [a for a in sys.argv[1:] if a != "--cpu"] or list(items)
    end = time.monotonic() + total_s
    lock = threading.Lock()

    def run(name):
        line = run_item(file, name, items[name][2], cpu, min(item_s, end - time.monotonic()))
        with lock:
            print(line, flush=True)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(run, [n for n in names if n not in alone]))
    for name in names:
        if name in alone:
            run(name)


def run_item(file, name, environment, cpu, timeout):
    if timeout < 5:
        return f"{name}: SKIPPED, no time left"
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    start, ranks = time.monotonic(), []
    for rank in range(NUM_RANKS):
        env = {**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        env |= {"JAX_PLATFORMS": "cpu"} if cpu else {"CUDA_VISIBLE_DEVICES": str(rank), **environment}
        command = [sys.executable, file, "--rank", str(rank), str(port), name]
        ranks.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        )
    outputs = [""] * NUM_RANKS

    def read(rank):
        outputs[rank] = ranks[rank].stdout.read()

    readers = [threading.Thread(target=read, args=(rank,)) for rank in range(NUM_RANKS)]
    [reader.start() for reader in readers]
    codes = []
    for process in ranks:
        try:
            codes.append(process.wait(max(0.1, start + timeout - time.monotonic())))
        except subprocess.TimeoutExpired:
            codes.append("timeout")
    [process.kill() for process in ranks if process.poll() is None]
    [reader.join() for reader in readers]
    found = [re.findall(r"^FOUND (.*)$", output, re.MULTILINE) for output in outputs]
    text = " | ".join(found[0]) if found[0] else "nothing found"
    if found[1] != found[0]:
        text += " || rank 1: " + (" | ".join(found[1]) or "nothing found")
    if any(codes):
        lines = [line for output in outputs for line in output.splitlines() if line.strip()]
        text += f" || exits {codes}, last lines: " + " / ".join(line[-220:] for line in lines[-4:])
    return f"{name} [{time.monotonic() - start:.0f} s]: {text}"


def found(*words):
    print("FOUND", *(str(word).replace("\n", " ") for word in words), flush=True)


def rank_main(rank, port, item, functions):
    import jax

    if os.environ.get("JAX_PLATFORMS") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}", NUM_RANKS, rank, local_device_ids=[0], cluster_detection_method="deactivate"
    )
    function, arguments, _ = item
    try:
        functions[f"item_{function}"](**arguments)
    except Exception as error:
        found("ERROR", type(error).__name__, str(error)[:600])
        sys.stdout.flush()
        os._exit(1)  # The other rank may wait for ever, and so would a tidy end.


# For the items, which run in the ranks.


def kernel(name="mosaic_gpu"):
    return "ppermute" if os.environ.get("JAX_PLATFORMS") == "cpu" else name


def mesh():
    import jax

    return jax.make_mesh((NUM_RANKS,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))


def make(seed, shape, spec, *, integers=False, scale=1.0):
    import jax
    import jax.numpy as jnp

    def draw():
        if integers:
            return jax.random.randint(jax.random.key(seed), shape, -4, 5).astype(jnp.bfloat16)
        return (jax.random.normal(jax.random.key(seed), shape) * scale).astype(jnp.bfloat16)

    return jax.jit(draw, out_shardings=jax.sharding.NamedSharding(mesh(), spec))()


def sharded(function, in_specs, out_specs, **options):
    import jax

    body = jax.shard_map(function, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return jax.jit(body, **options)


def product(implementation, **options):
    import functools

    import cmkernel

    return functools.partial(cmkernel.all_gather_matmul, axis_name="x", implementation=implementation, **options)


def distances(a, b):
    """Relative error of each array of ``a``, as text."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def distance(a, b):
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        return jnp.linalg.norm(a - b) / jnp.linalg.norm(b), jnp.sum(a != b)

    pairs = [distance(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    return ", ".join(f"{float(error):.1e} ({int(count)} differ)" for error, count in pairs)


def specs():
    from jax.sharding import PartitionSpec as P

    return P("x", None), P(None, "x")
