"""The actor: one JAX process with one device, which does what the driver asks of its session."""

from __future__ import annotations

import faulthandler
import importlib
import importlib.metadata
import os
import pickle
import platform
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import ray

from jobs.errors import InfrastructureError, JobError
from jobs.gang.messages import Failure, Place, Report, Setup
from jobs.health.facts import GpuFacts
from jobs.health.gpu_findings import MAX_FOREIGN_BYTES
from jobs.health.host import boot_id, resolve
from jobs.measure.pulse import PULSE
from jobs.records.member import Member

# Group of the methods that answer while another method of the actor is stuck.
CONTROL = "control"
_TRACEBACK_LINES = 12
# A killed process gives its GPU memory back after a moment.
_LEAVE_TIMEOUT_S = 10.0
_LEAVE_INTERVAL_S = 0.2


class Rank:
    """A rank of the gang. Methods of group CONTROL run beside the others; those run one at a time."""

    def __init__(self) -> None:
        self._session: Any = None
        self._place: Place | None = None
        # `kill -USR1 pid` writes the stacks to the rank's stderr, also where no Python code can run.
        faulthandler.register(signal.SIGUSR1, all_threads=True)

    def place(self) -> Place:
        """Where this actor runs, and on what, as it was before the first call."""
        self._place = self._place or self._look_around()
        return self._place

    def coordinator_address(self) -> str:
        """``ip:port`` for jax.distributed, on this node and free a moment ago."""
        ip = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((ip, 0))
            port = sock.getsockname()[1]
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"

    def setup(self, setup: Setup) -> Member | Failure:
        """Join jax.distributed, build the session and say who this is."""
        return _as_data(self._setup, setup)

    def call(self, method: str, *args: Any) -> Any:
        """Result of a method of the session, or the ``Failure`` that it raised."""
        named = [method, *(arg for arg in args if isinstance(arg, str))]
        PULSE.begin(" ".join(named))
        try:
            return _as_data(lambda: getattr(self._session, method)(*args))
        finally:
            PULSE.begin(None)

    @ray.method(concurrency_group=CONTROL)
    def ping(self) -> bool:
        """Whether this process still runs Python code."""
        return True

    @ray.method(concurrency_group=CONTROL)
    def report(self) -> Report:
        """How far this rank has got, and its stacks."""
        return Report(
            idle_s=PULSE.idle_s,
            is_compiling=PULSE.is_compiling,
            step=PULSE.step,
            iteration=PULSE.iteration,
            finished_case=PULSE.finished_case,
            stacks=_stacks(),
        )

    def _look_around(self) -> Place:
        context = ray.get_runtime_context()
        host = socket.gethostname()
        gpu_ids = tuple(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", ()))
        return Place(
            node_id=context.get_node_id(),
            host=host,
            ip=ray.util.get_node_ip_address(),
            pid=os.getpid(),
            gpu_ids=gpu_ids,
            resolved_ip=resolve(host),
            stderr_path=_path_of(sys.stderr.fileno()),
            boot_id=boot_id(),
            gpu=_gpu_facts() if gpu_ids else None,
        )

    def _setup(self, setup: Setup) -> Member:
        place = self.place()
        on_gpu = bool(place.gpu_ids)
        _set_environment(setup, on_gpu=on_gpu)
        import jax.monitoring  # after the environment, which it reads

        jax.monitoring.register_scalar_listener(PULSE.compilation_begins)
        jax.monitoring.register_event_duration_secs_listener(PULSE.compilation_ends)
        jax.distributed.initialize(
            setup.coordinator,
            setup.num_ranks,
            setup.rank,
            local_device_ids=[0],
            cluster_detection_method="deactivate",
            initialization_timeout=max(1, int(setup.timeout_s)),
            heartbeat_timeout_seconds=setup.heartbeat_timeout_s,
            # Not on all interfaces: whoever reaches the coordinator can join or end the gang.
            coordinator_bind_address=setup.coordinator,
        )
        device = jax.local_devices()[0]
        if on_gpu and device.platform != "gpu":
            # jax passes over a CUDA that isn't installed, though it is named.
            raise InfrastructureError(
                f"rank {setup.rank} on {place.host} (pid {place.pid}): Ray gave it GPU {place.gpu_ids[0]}, but jax "
                f"finds only {device.device_kind}; install requirements-cuda13.lock, or submit with --install=cuda13"
            )
        gpu_uuid, gpu_index, driver_version = _gpu() if on_gpu else (None, None, None)
        module, name = setup.session.split(":")
        self._session = getattr(importlib.import_module(module), name)()
        return Member(
            rank=setup.rank,
            host=place.host,
            ip=place.ip,
            node_id=place.node_id,
            pid=place.pid,
            device_kind=device.device_kind,
            gpu_uuid=gpu_uuid,
            gpu_index=gpu_index,
            driver_version=driver_version,
            versions=_versions(on_gpu),
            stderr_path=place.stderr_path,
            nvlink_domain=place.nvlink_domain,
        )


def _set_environment(setup: Setup, *, on_gpu: bool) -> None:
    if "jax" in sys.modules:
        raise RuntimeError("jax was imported before its environment was set")
    os.environ.pop("WANDB_API_KEY", None)
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
    if on_gpu:
        # A CUDA that doesn't start is then an error, and not a run on the CPU.
        os.environ["JAX_PLATFORMS"] = "cuda,cpu"
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(setup.gpu_memory_fraction)
        # CUDA's order of the GPUs is then NVML's, which tells this rank's UUID and telemetry by index.
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    else:
        os.environ["JAX_PLATFORMS"] = "cpu"
        flags.append("--xla_force_host_platform_device_count=1")
    os.environ["XLA_FLAGS"] = " ".join(flags)
    # gRPC would look for the coordinator behind the proxy.
    ip = setup.coordinator.rpartition(":")[0].strip("[]")
    os.environ["no_proxy"] = ",".join(filter(None, [os.environ.get("no_proxy"), ip]))


def _gpu() -> tuple[str, int, str]:
    import pynvml

    from jobs.health.nvml import visible_gpu

    handle = visible_gpu()
    uuid, index = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetIndex(handle)
    return uuid, index, pynvml.nvmlSystemGetDriverVersion()


def _gpu_facts() -> GpuFacts | None:
    """Of this rank's GPU, once the processes of an earlier gang have left it; ``None`` where NVML isn't there."""
    import pynvml

    from jobs.health.nvml import gpu_facts, used_bytes, visible_gpu

    try:
        handle, deadline = visible_gpu(), time.monotonic() + _LEAVE_TIMEOUT_S
        while (used_bytes(handle) or 0) > MAX_FOREIGN_BYTES and time.monotonic() < deadline:
            time.sleep(_LEAVE_INTERVAL_S)
        return gpu_facts(handle)
    except pynvml.NVMLError:
        return None


def _versions(on_gpu: bool) -> dict[str, str]:
    packages = ("jax", "jaxlib", "ray", "numpy")
    versions = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in packages}
    if on_gpu:
        from cmkernel.hardware import nccl_version

        version = nccl_version()
        versions["nccl"] = ".".join(map(str, version)) if version else "none"
    return versions


def _stacks() -> str:
    """Of all threads but this one that run more than Ray's own code."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = {
        f"Thread {names.get(ident, ident)}:\n": traceback.extract_stack(frame)
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    }
    idle = (os.path.dirname(ray.__file__), threading.__file__)
    return "\n".join(
        title + "".join(stack.format())
        for title, stack in stacks.items()
        if not all(frame.filename.startswith(idle) for frame in stack)
    )


def _as_data(function: Callable[..., Any], *args: Any) -> Any:
    """Result of ``function``, or its exception as a ``Failure``."""
    try:
        return function(*args)
    except Exception as error:
        # Also where a log of this rank is read for itself.
        traceback.print_exc()
        return _failure(error)


def _failure(error: Exception) -> Failure:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    lines = "".join(traceback.format_exception(error)).splitlines()
    return Failure(
        type_name=type(error).__name__,
        text=str(error),
        traceback_tail="\n".join(lines[-_TRACEBACK_LINES:]),
        origin=frame.tb_frame.f_globals.get("__name__", "") if frame else "",
        pickled=pickle.dumps(error) if isinstance(error, JobError) else None,
    )


def _path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return "its standard error"
