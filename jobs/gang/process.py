"""The process of a rank: its environment, GPU, versions and stacks."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import threading
import time
import traceback

import ray

from jobs.errors import UsageError
from jobs.gang.messages import Setup
from jobs.health.facts import GpuFacts
from jobs.health.gpu_findings import MAX_FOREIGN_BYTES

# A killed process releases its GPU memory a moment later.
_RELEASE_TIMEOUT_S = 10.0
_RELEASE_INTERVAL_S = 0.2
# Caches and logs of jax, and the platform, which each rank sets. Any other option would make times and results those of
# another program.
_HARMLESS = (
    "JAX_PLATFORMS",
    "JAX_COMPILATION_CACHE",
    "JAX_ENABLE_COMPILATION_CACHE",
    "JAX_PERSISTENT_CACHE",
    "JAX_RAISE_PERSISTENT_CACHE",
    "JAX_LOG",
    "JAX_DEBUG_LOG",
    "JAX_TRACEBACK",
    "JAX_DUMP",
)


def set_environment(setup: Setup, *, on_gpu: bool) -> None:
    """Set the variables that jax, XLA and gRPC read; call it before jax is imported."""
    if "jax" in sys.modules:
        raise RuntimeError("jax was imported before its environment was set")
    for name in user_variables():
        print(f"{name}={os.environ.pop(name)} is ignored on a rank", file=sys.stderr, flush=True)
    os.environ.pop("WANDB_API_KEY", None)
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
    if on_gpu:
        # Without an explicit platform, jax falls back to the CPU when CUDA doesn't start.
        os.environ["JAX_PLATFORMS"] = "cuda,cpu"
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(setup.gpu_memory_fraction)
        # Makes CUDA order the GPUs as NVML does, which reads this rank's UUID and telemetry by index.
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    else:
        os.environ["JAX_PLATFORMS"] = "cpu"
        flags.append("--xla_force_host_platform_device_count=1")
    os.environ["XLA_FLAGS"] = " ".join(flags)
    # Otherwise gRPC looks for the coordinator behind the proxy.
    ip = setup.coordinator.rpartition(":")[0].strip("[]")
    os.environ["no_proxy"] = ",".join(filter(None, [os.environ.get("no_proxy"), ip]))


def user_variables() -> list[str]:
    """Variables of jax in this environment that would change what a rank is or how it computes."""
    return sorted(name for name in os.environ if name.startswith("JAX_") and not name.startswith(_HARMLESS))


def refuse_xla_flags() -> None:
    """Start jax in a process of its own if there are XLA_FLAGS: every rank would abort on one that XLA doesn't know.

    Raises:
      UsageError: XLA refuses them.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if not flags:
        return
    kept = {name: value for name, value in os.environ.items() if name not in user_variables()}
    command = [sys.executable, "-P", "-c", "import jax; jax.devices()"]
    done = subprocess.run(command, env={**kept, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UsageError(f"XLA_FLAGS={flags}: jax doesn't start with them ({last.partition('] ')[2] or last})")


def gpu_identity() -> tuple[str, int, str]:
    """UUID and NVML index of this rank's GPU, and the driver's version."""
    import pynvml

    from jobs.health.nvml import visible_gpu

    handle = visible_gpu()
    uuid, index = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetIndex(handle)
    return uuid, index, pynvml.nvmlSystemGetDriverVersion()


def own_gpu_facts() -> GpuFacts | None:
    """Facts about this rank's GPU after an earlier gang's processes have left it; ``None`` without NVML."""
    import pynvml

    from jobs.health.nvml import gpu_facts, used_bytes, visible_gpu

    try:
        handle, deadline = visible_gpu(), time.monotonic() + _RELEASE_TIMEOUT_S
        while (used_bytes(handle) or 0) > MAX_FOREIGN_BYTES and time.monotonic() < deadline:
            time.sleep(_RELEASE_INTERVAL_S)
        return gpu_facts(handle)
    except pynvml.NVMLError:
        return None


def versions(on_gpu: bool) -> dict[str, str]:
    """Versions of Python and the packages here; on a GPU, of the loaded NCCL too."""
    packages = ("jax", "jaxlib", "ray", "numpy")
    versions = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in packages}
    if on_gpu:
        from cmkernel.hardware import nccl_version

        version = nccl_version()
        versions["nccl"] = ".".join(map(str, version)) if version else "none"
    return versions


def stacks() -> str:
    """Stacks of all other threads that run more than Ray's own code."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    by_thread = {
        f"Thread {names.get(ident, ident)}:\n": traceback.extract_stack(frame)
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    }
    idle = (os.path.dirname(ray.__file__), threading.__file__)
    return "\n".join(
        title + "".join(stack.format())
        for title, stack in by_thread.items()
        if not all(frame.filename.startswith(idle) for frame in stack)
    )


def stderr_path() -> str:
    """File that this process's standard error goes to."""
    try:
        return os.readlink(f"/proc/self/fd/{sys.stderr.fileno()}")
    except OSError:
        return "its standard error"
