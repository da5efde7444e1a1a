"""Processes that stand for ranks, one device each: they hold jax, so that a kernel that hangs can be killed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

SPAWN = multiprocessing.get_context("spawn")


def visible_gpus() -> list[str]:
    """Names of this machine's NVIDIA GPUs, as ``CUDA_VISIBLE_DEVICES`` takes them; asks no library that needs one."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        names = [name.strip() for name in visible.split(",")]
        return [name for name in names if name not in ("", "-1", "NoDevFiles")]
    count = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if shutil.which("nvidia-smi"):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
        count = max(count, len(re.findall(r"^GPU \d+:", listed.stdout, re.MULTILINE)))
    return [str(index) for index in range(count)]


class Ranks:
    """``len(gpus)`` processes that call the same functions at the same time, or as many on the CPU.

    Started at the first call, and again at the next one after a call that failed.
    """

    def __init__(self, gpus: Sequence[str] = (), *, num_on_cpu: int = 0) -> None:
        """``gpus`` are names from ``visible_gpus``; several ranks form one world of ``jax.distributed``."""
        # The tests' own jax is kept to eight CPU devices by these two.
        base = {"JAX_PLATFORMS": "", "XLA_FLAGS": "", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.05"}
        self._environments = [base | {"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus]
        self._environments += [base | {"JAX_PLATFORMS": "cpu"}] * num_on_cpu
        self._pools: list[ProcessPoolExecutor] = []
        self._pids: list[int] = []

    def __len__(self) -> int:
        return len(self._environments)

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float = 120, **options: Any) -> list[Any]:
        """``function(*args, **options)`` in every rank; returns the results in order of ranks.

        Raises:
          TimeoutError: a rank took longer than ``timeout_s``.
          Exception: what the first rank to fail raised.
        """
        try:
            if not self._pools:
                self._start()
            futures = [pool.submit(function, *args, **options) for pool in self._pools]
            done, running = concurrent.futures.wait(futures, timeout_s, return_when=concurrent.futures.FIRST_EXCEPTION)
            for future in done:
                future.result()
            if running:
                raise TimeoutError(f"{len(running)} of {len(self)} ranks hung in {function.__name__}: {timeout_s=}")
            return [future.result() for future in futures]
        except BaseException:
            # The other ranks may wait for the failed one for ever.
            self.kill()
            raise

    def kill(self) -> None:
        """End the processes, whatever they do."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)
        self._pools, self._pids = [], []

    def _start(self) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{sock.getsockname()[1]}"
        self._pools = [ProcessPoolExecutor(1, mp_context=SPAWN) for _ in self._environments]
        pids = [
            pool.submit(_set_environment, environment)
            for pool, environment in zip(self._pools, self._environments, strict=True)
        ]
        self._pids = [pid.result(60) for pid in pids]
        if len(self) > 1:
            worlds = [pool.submit(_join, address, len(self), rank) for rank, pool in enumerate(self._pools)]
            for world in worlds:
                world.result(120)


def _set_environment(environment: dict[str, str]) -> int:
    # Before jax is imported: it reads these once.
    os.environ.update(environment)
    return os.getpid()


def _join(address: str, num_ranks: int, rank: int) -> None:
    import jax

    if os.environ["JAX_PLATFORMS"] == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_ranks, rank, local_device_ids=[0], cluster_detection_method="deactivate")
