"""PyTorch's ``torch.ops.symm_mem.fused_all_gather_matmul`` as a baseline, in the ranks' own processes beside jax.

Operands and results pass through DLPack without a copy, so the check is that of every implementation. torch is no
dependency: it is imported where this baseline is asked for, and what fails there becomes the row's reason. Written for
torch 2.11; its symmetric memory has no public name yet.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import logging
import os
import socket
import traceback
from collections.abc import Sequence
from typing import Any

import jax

logger = logging.getLogger(__name__)

NAME = "torch_fused"
# For the ranks to meet, and for each exchange through the store.
TIMEOUT = datetime.timedelta(seconds=60)
_REASON_CHARS = 300
_ENVIRONMENT = {
    # NVLink multicast is a resource of the whole machine, and may be forbidden where it is shared.
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NCCL_NVLS_ENABLE": "0",
    # Every rank sees its own GPU alone, as device 0, which torch would take for one GPU that all of them share.
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
}


@dataclasses.dataclass(frozen=True)
class Readiness:
    """Whether a rank can join."""

    refusal: str | None
    """Why it can't."""
    port: int = 0
    """Where this rank listens; that of rank 0 counts."""


@dataclasses.dataclass(frozen=True)
class Result:
    """A tensor that torch may still be computing."""

    torch: Any
    tensor: Any
    operands: Any
    """What it is computed from: jax, which can't see torch's work, reuses their memory as soon as nobody holds them."""

    def block_until_ready(self) -> Result:
        """As a ``jax.Array`` does it."""
        self.torch.cuda.synchronize()
        return self

    def to_jax(self) -> jax.Array:
        """A copy, which later calls don't overwrite."""
        tensor = self.tensor.clone()
        self.torch.cuda.synchronize()
        return jax.dlpack.from_dlpack(tensor)


class Group:
    """The ranks as a process group of torch, which they have ``TIMEOUT`` to form."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self._rank, self._num_ranks = rank, num_ranks
        self._listener: socket.socket | None = None
        self._name = ""
        self._is_settled = False
        # Why it could not be joined.
        self._refusal: str | None = None
        self.torch: Any = None

    def get_ready(self, host: str) -> Readiness:
        """Import torch; rank 0 listens at ``host``, its own address, on a port that is free there."""
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
            return Readiness(told(error))
        return Readiness(None, self._listener.getsockname()[1] if self._listener else 0)

    def join(self, host: str, port: int) -> str | None:
        """Make the process group, or know that there is one; why that failed, or ``None``."""
        if self._is_settled:
            return self._refusal
        try:
            self._join(host, port)
        except Exception as error:
            self._refusal = told(error)
        self._is_settled = True
        return self._refusal

    def _join(self, host: str, port: int) -> None:
        dist = importlib.import_module("torch.distributed")
        importlib.import_module("torch.distributed._symmetric_memory")  # It defines the operation.
        self.torch.cuda.set_device(0)
        # What every implementation here does, and what the check demands: sums in float32, rounded once.
        self.torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self.torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        store = dist.TCPStore(
            host,
            port,
            self._num_ranks,
            self._rank == 0,
            timeout=TIMEOUT,
            # A socket of ours: torch's own would listen on all interfaces. Its libuv server can't take one.
            master_listen_fd=self._listener.detach() if self._listener else None,
            use_libuv=False,
        )
        dist.init_process_group("nccl", store=store, rank=self._rank, world_size=self._num_ranks, timeout=TIMEOUT)
        self._name = dist.group.WORLD.group_name

    def multiply(self, lhs: Any, rhs: Any) -> Any:
        """Per rank: ``[m_shard, k]``, ``[k, n_shard]`` -> ``[num_ranks * m_shard, n_shard]``. Doesn't wait for it."""
        _, (out,) = self.torch.ops.symm_mem.fused_all_gather_matmul(
            lhs, [rhs], gather_dim=0, group_name=self._name, return_A=False
        )
        return out

    def call(self, lhs: Any, rhs: Any) -> Result:
        """``multiply``, to be waited for."""
        return Result(self.torch, self.multiply(lhs, rhs), (lhs, rhs))

    def take(self, array: jax.Array) -> Any:
        """The tensor of this rank's shard, in the same memory; torch's work on it follows what jax has yet to do."""
        return self.torch.from_dlpack(array.addressable_shards[0].data)

    def follow(self, array: jax.Array) -> None:
        """Let what torch does next on the device wait for ``array``: its streams know nothing of jax's."""
        self.take(array)


class Chain:
    """Dependent calls with the same other operations as in ``programs``: one CUDA graph, where it can be captured."""

    def __init__(self, group: Group, length: int) -> None:
        self._group, self._length = group, length
        self._torch = group.torch
        self._captured: tuple[Any, Any, Any] | None = None
        self.captures = True
        """Otherwise it runs eagerly."""

    def __call__(self, lhs_sets: Sequence[Any], rhs_sets: Sequence[Any]) -> Result:
        """Result of the last call."""
        if not self.captures:
            return Result(self._torch, self._run(lhs_sets, rhs_sets), (lhs_sets, rhs_sets))
        # A graph holds addresses. The sets that it was captured with are kept, so no others get theirs.
        addresses = [tensor.data_ptr() for tensor in (*lhs_sets, *rhs_sets)]
        if self._captured is None or self._captured[0] != addresses:
            graph, out = self._capture(lhs_sets, rhs_sets)
            self._captured = addresses, (graph, out), (lhs_sets, rhs_sets)
        graph, out = self._captured[1]
        graph.replay()
        return Result(self._torch, out, (lhs_sets, rhs_sets))

    def try_out(self, lhs: Any, rhs: Any) -> None:
        """Find out whether it can be captured; raises what an eager run of it raises."""
        try:
            self([lhs], [rhs]).block_until_ready()
        except Exception as error:
            logger.warning("the chain of %s runs eagerly: %s", NAME, told(error))
            self.captures = False
            self([lhs], [rhs]).block_until_ready()

    def _capture(self, lhs_sets: Sequence[Any], rhs_sets: Sequence[Any]) -> tuple[Any, Any]:
        self._captured = None
        graph = self._torch.cuda.CUDAGraph()
        # thread_local: what other threads of the process do meanwhile, jax's for one, doesn't end the capture.
        with self._torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out = self._run(lhs_sets, rhs_sets)
        return graph, out

    def _run(self, lhs_sets: Sequence[Any], rhs_sets: Sequence[Any]) -> Any:
        lhs_sets, owned = list(lhs_sets), set()
        out = self._group.multiply(lhs_sets[0], rhs_sets[0])
        for i in range(1, self._length):
            turn = i % len(lhs_sets)
            if turn not in owned:
                # XLA copies each set, too, before it writes into it.
                lhs_sets[turn] = lhs_sets[turn].clone()
                owned.add(turn)
            lhs = lhs_sets[turn]
            width = min(8, lhs.shape[1], out.shape[1])
            lhs[:1, :width].add_(out[:1, :width] * 0)
            out = self._group.multiply(lhs, rhs_sets[turn])
        return out


def build(group: Group, lhs: jax.Array, rhs: jax.Array, *, chain_length: int) -> tuple[Chain, dict[str, Any]]:
    """The chain, tried out as the single call is, and what the record says about both.

    Raises:
      NotImplementedError: torch raised; on all ranks, unless only this one is broken.
    """
    try:
        operands = group.take(lhs), group.take(rhs)
        group.call(*operands).block_until_ready()
        chain = Chain(group, chain_length)
        chain.try_out(*operands)
    except Exception as error:
        raise NotImplementedError(told(error)) from error
    return chain, {"torch": str(group.torch.__version__), "chain": "cuda_graph" if chain.captures else "eager"}


def import_torch() -> Any:
    """torch, imported in an environment that suits the ranks.

    Raises:
      NotImplementedError: it isn't installed, or has no CUDA.
    """
    os.environ.update(_ENVIRONMENT)
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise NotImplementedError(f"torch can't be imported: {error}") from error
    if not torch.cuda.is_available():
        raise NotImplementedError(f"torch {torch.__version__} finds no CUDA device")
    return torch


def told(error: Exception) -> str:
    """An exception as a reason of one line; its traceback goes to the rank's log."""
    traceback.print_exception(error)
    text = " ".join(str(error).split())
    if not isinstance(error, NotImplementedError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _REASON_CHARS else f"{text[:_REASON_CHARS]} ..."


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
