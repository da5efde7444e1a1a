"""A baseline: PyTorch's ``fused_all_gather_matmul`` and ``fused_matmul_reduce_scatter`` (``torch.ops.symm_mem``).

They run in the ranks' processes beside jax.

Operands and results pass through DLPack without a copy, so the check is the same as for every implementation. torch is
no dependency: it is imported only when this baseline is requested, and a failure becomes the row's reason. Written for
torch 2.11, where symmetric memory has no public name yet.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import logging
import os
import socket
from collections.abc import Sequence
from typing import Any

import jax

from jobs.measure.reason import reason_of
from jobs.records.op import Op

logger = logging.getLogger(__name__)

NAME = "torch_fused"
# Limit for the ranks to meet, and for each exchange through the store.
TIMEOUT = datetime.timedelta(seconds=60)
_ENVIRONMENT = {
    # NVLink multicast belongs to the whole machine; on a shared machine it may be forbidden.
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NCCL_NVLS_ENABLE": "0",
    # Every rank sees only its own GPU, as device 0; torch would assume that all ranks share one GPU.
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
}


@dataclasses.dataclass(frozen=True)
class Readiness:
    """A rank's answer before the ranks form a process group."""

    refusal: str | None
    """Reason why the rank can't join; ``None`` if it can."""
    port: int = 0
    """Port that rank 0 listens on; 0 for other ranks."""


@dataclasses.dataclass(frozen=True)
class Result:
    """A tensor that torch may still be computing."""

    torch: Any
    tensor: Any
    operands: Any
    """Its inputs, kept alive: jax can't see torch's work and would reuse their memory once nothing refers to them."""

    def block_until_ready(self) -> Result:
        """Wait for the result, as ``jax.Array`` does."""
        self.torch.cuda.synchronize()
        return self

    def to_jax(self) -> jax.Array:
        """Copy that later calls don't overwrite."""
        tensor = self.tensor.clone()
        self.torch.cuda.synchronize()
        return jax.dlpack.from_dlpack(tensor)


class Group:
    """The ranks as a process group of torch; they have ``TIMEOUT`` to form it."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self._rank, self._num_ranks = rank, num_ranks
        self._listener: socket.socket | None = None
        self._name = ""
        self._is_settled = False
        # Reason of a failed join.
        self._refusal: str | None = None
        self.torch: Any = None

    def get_ready(self, host: str) -> Readiness:
        """Import torch; rank 0 also listens on a free port of ``host``, its own address."""
        if self._is_settled:
            return Readiness(self._refusal)
        if jax.devices()[0].platform != "gpu":
            return Readiness(f"platform={jax.devices()[0].platform!r} must be 'gpu'")
        if self._num_ranks == 1:
            return Readiness("it needs at least 2 ranks")
        try:
            self.torch = import_torch()
            self._listener = socket.create_server((host, 0), family=_family(host)) if self._rank == 0 else None
        except Exception as error:
            return Readiness(reason_of(error))
        return Readiness(None, self._listener.getsockname()[1] if self._listener else 0)

    def join(self, host: str, port: int) -> str | None:
        """Form the process group, once; return the reason of a failure, or ``None``."""
        if self._is_settled:
            return self._refusal
        try:
            self._join(host, port)
        except Exception as error:
            self._refusal = reason_of(error)
        self._is_settled = True
        return self._refusal

    def _join(self, host: str, port: int) -> None:
        dist = importlib.import_module("torch.distributed")
        importlib.import_module("torch.distributed._symmetric_memory")  # defines the operation
        self.torch.cuda.set_device(0)
        # Sum in float32 and round once, as every implementation here does and the check demands.
        self.torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self.torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        store = dist.TCPStore(
            host,
            port,
            self._num_ranks,
            self._rank == 0,
            timeout=TIMEOUT,
            # torch's own socket would listen on all interfaces; its libuv server can't take this one.
            master_listen_fd=self._listener.detach() if self._listener else None,
            use_libuv=False,
        )
        dist.init_process_group("nccl", store=store, rank=self._rank, world_size=self._num_ranks, timeout=TIMEOUT)
        self._name = dist.group.WORLD.group_name

    def multiply(self, op: Op, lhs: Any, rhs: Any) -> Any:
        """Enqueue one multiply; shapes per rank are those of ``jobs.records.case.Case``."""
        if op is Op.matmul_reduce_scatter:
            return self.torch.ops.symm_mem.fused_matmul_reduce_scatter(lhs, rhs, "sum", 0, self._name)
        _, (out,) = self.torch.ops.symm_mem.fused_all_gather_matmul(
            lhs, [rhs], gather_dim=0, group_name=self._name, return_A=False
        )
        return out

    def take(self, array: jax.Array) -> Any:
        """Tensor that shares the memory of this rank's shard; torch's work on it waits for jax's pending work."""
        return self.torch.from_dlpack(array.addressable_shards[0].data)

    def follow(self, array: jax.Array) -> None:
        """Make torch's next work on the device wait for ``array``; its streams don't see jax's."""
        self.take(array)


class Multiplies:
    """A single call, and ``length`` dependent calls with the same extra operations as in ``chain``.

    The chain is one CUDA graph if capture works.
    """

    def __init__(self, group: Group, op: Op, length: int) -> None:
        self._group, self._op, self._length = group, op, length
        self._torch = group.torch
        self._captured: tuple[Any, Any, Any] | None = None
        self.captures = True
        """The chain replays a CUDA graph; ``False`` runs it eagerly."""

    def call(self, lhs: Any, rhs: Any) -> Result:
        """Enqueue one multiply; the result can be waited for."""
        return Result(self._torch, self._multiply(lhs, rhs), (lhs, rhs))

    def chain(self, sets: Sequence[tuple[Any, Any]]) -> Result:
        """Result of the last call."""
        if not self.captures:
            return Result(self._torch, self._run(sets), sets)
        # A graph holds addresses. Keep the sets that it was captured with, so that no others get their memory.
        addresses = [tensor.data_ptr() for operands in sets for tensor in operands]
        if self._captured is None or self._captured[0] != addresses:
            graph, out = self._capture(sets)
            self._captured = addresses, (graph, out), sets
        graph, out = self._captured[1]
        graph.replay()
        return Result(self._torch, out, sets)

    def try_out(self, lhs: Any, rhs: Any) -> None:
        """Set ``captures`` by trying; raise what an eager run raises."""
        self.call(lhs, rhs).block_until_ready()
        try:
            self.chain([(lhs, rhs)]).block_until_ready()
        except Exception as error:
            logger.warning("the chain of %s runs eagerly: %s", NAME, reason_of(error))
            self.captures = False
            self.chain([(lhs, rhs)]).block_until_ready()

    def _multiply(self, lhs: Any, rhs: Any) -> Any:
        return self._group.multiply(self._op, lhs, rhs)

    def _capture(self, sets: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
        self._captured = None
        graph = self._torch.cuda.CUDAGraph()
        # thread_local: work of other threads, such as jax's, must not end the capture.
        with self._torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out = self._run(sets)
        return graph, out

    def _run(self, sets: Sequence[tuple[Any, Any]]) -> Any:
        sets, owned = list(sets), set()
        out = self._multiply(*sets[0])
        for i in range(1, self._length):
            turn = i % len(sets)
            lhs, rhs = sets[turn]
            if turn not in owned:
                # XLA copies each set before its first write, too.
                lhs = lhs.clone()
                owned.add(turn)
                sets[turn] = lhs, rhs
            width = min(8, lhs.shape[1], out.shape[1])
            lhs[:1, :width].add_(out[:1, :width] * 0)
            out = self._multiply(lhs, rhs)
        return out


def build(
    group: Group, op: Op, lhs: jax.Array, rhs: jax.Array, *, chain_length: int
) -> tuple[Multiplies, dict[str, Any]]:
    """Build call and chain and try them; return them with the row's ``config``.

    Raises:
      NotImplementedError: torch raised. All ranks fail alike, unless only this one is broken.
    """
    try:
        multiplies = Multiplies(group, op, chain_length)
        multiplies.try_out(group.take(lhs), group.take(rhs))
    except Exception as error:
        raise NotImplementedError(reason_of(error)) from error
    chain = "cuda_graph" if multiplies.captures else "eager"
    return multiplies, {"torch": str(group.torch.__version__), "chain": chain}


def import_torch() -> Any:
    """Set torch's environment for the ranks and import it.

    Raises:
      NotImplementedError: torch isn't installed, or finds no CUDA device.
    """
    os.environ.update(_ENVIRONMENT)
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise NotImplementedError(f"torch can't be imported: {error}") from error
    if not torch.cuda.is_available():
        raise NotImplementedError(f"torch {torch.__version__} finds no CUDA device")
    return torch


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
