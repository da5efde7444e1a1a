"""The actor of a rank: one JAX process with one device that runs the session's methods for the driver."""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any

import ray

from jobs.errors import InfrastructureError, JobError
from jobs.gang.messages import Failure, Place, Report, Setup
from jobs.gang.process import gpu_identity, own_gpu_facts, set_environment, stacks, stderr_path, versions
from jobs.health.host import boot_id, oom_kills, resolve
from jobs.measure.pulse import PULSE
from jobs.records.member import Member

# Concurrency group of the methods that answer while a step is stuck.
CONTROL = "control"
_TRACEBACK_LINES = 12


class Rank:
    """A rank of the gang. Methods of group CONTROL run at any time; all others run one at a time."""

    def __init__(self) -> None:
        self._session: Any = None
        self._place: Place | None = None
        # `kill -USR1 pid` writes the stacks to the rank's stderr, even when no Python code can run.
        faulthandler.register(signal.SIGUSR1, all_threads=True)

    def place(self) -> Place:
        """Host, process and GPU of this actor, as they were at the first call."""
        self._place = self._place or self._look_around()
        return self._place

    def coordinator_address(self) -> str:
        """``ip:port`` for jax.distributed: an address of this node and a port that is free now."""
        ip = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((ip, 0))
            port = sock.getsockname()[1]
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"

    def setup(self, setup: Setup) -> Member | Failure:
        """Join jax.distributed, build the session and return this rank's member."""
        return _as_data(self._setup, setup)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the session; return its result, or a ``Failure`` for its exception."""
        named = [method, *(arg for arg in args if isinstance(arg, str))]
        PULSE.begin(" ".join(named))
        try:
            return _as_data(lambda: getattr(self._session, method)(*args))
        finally:
            PULSE.begin(None)

    @ray.method(concurrency_group=CONTROL)
    def ping(self) -> bool:
        """Answer if this process still runs Python code."""
        return True

    @ray.method(concurrency_group=CONTROL)
    def report(self) -> Report:
        """Progress and stacks of this rank."""
        return Report(
            idle_s=PULSE.idle_s,
            is_compiling=PULSE.is_compiling,
            step=PULSE.step,
            iteration=PULSE.iteration,
            finished_case=PULSE.finished_case,
            stacks=stacks(),
        )

    def _look_around(self) -> Place:
        context = ray.get_runtime_context()
        host = socket.gethostname()
        resolved_ip, owns_resolved_ip = resolve(host)
        gpu_ids = tuple(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", ()))
        return Place(
            node_id=context.get_node_id(),
            host=host,
            ip=ray.util.get_node_ip_address(),
            pid=os.getpid(),
            gpu_ids=gpu_ids,
            resolved_ip=resolved_ip,
            owns_resolved_ip=owns_resolved_ip,
            stderr_path=stderr_path(),
            boot_id=boot_id(),
            oom_kills=oom_kills(),
            gpu=own_gpu_facts() if gpu_ids else None,
        )

    def _setup(self, setup: Setup) -> Member:
        place = self.place()
        on_gpu = bool(place.gpu_ids)
        set_environment(setup, on_gpu=on_gpu)
        import jax.monitoring  # it reads the environment

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
            # One interface only: anyone who reaches the coordinator can join or end the gang.
            coordinator_bind_address=setup.coordinator,
        )
        device = jax.local_devices()[0]
        if on_gpu and device.platform != "gpu":
            # jax skips a named platform whose plugin isn't installed.
            raise InfrastructureError(
                f"rank {setup.rank} on {place.host} (pid {place.pid}): Ray assigned GPU {place.gpu_ids[0]}, but jax "
                f"finds only {device.device_kind}; install requirements-cuda13.lock, or submit with --install=cuda13"
            )
        gpu_uuid, gpu_index, driver_version = gpu_identity() if on_gpu else (None, None, None)
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
            versions=versions(on_gpu),
            stderr_path=place.stderr_path,
            nvlink_domain=place.nvlink_domain,
        )


def _as_data(function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function``; return its result, or its exception as a ``Failure``."""
    try:
        return function(*args)
    except Exception as error:
        # For readers of this rank's own log.
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
