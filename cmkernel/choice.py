"""Choose the implementation of a call: validate its operands, check the machine, never fall back silently."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax

from cmkernel import cost, hardware
from cmkernel.config import Config, Op, SimpleKernelConfig, config_type, validate_shape
from cmkernel.cost import Links
from cmkernel.operands import (
    AxisName,
    find_hosts,
    kernel_refusal,
    validate_operands,
    validate_partial_dtype,
    validate_scattered_rows,
    validate_shard_map,
)
from cmkernel.performance_model import modelled_calls_us, simple_heuristic_config
from cmkernel.ring import TwoLevelRing
from cmkernel.scatter_model import modelled_scatter_calls_us
from cmkernel.tuned import Chosen, Shape, Table, choose_config

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Implementation = Literal["auto", "mosaic_gpu", "mosaic_gpu_simple", "ppermute", "ppermute_two_level", "xla"]
ScatterImplementation = Literal["auto", "mosaic_gpu", "ppermute", "xla"]
IMPLEMENTATIONS: dict[Op, tuple[str, ...]] = {
    "all_gather_matmul": get_args(Implementation),
    "matmul_reduce_scatter": get_args(ScatterImplementation),
}
"""Implementations of each operation."""

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The implementation that a call runs, never ``auto``."""

    implementation: Implementation
    config: Config | None
    """Config of ``ppermute`` and of the ``mosaic_gpu`` kernels; ``None`` for the others."""
    reason: str
    """Why this implementation was chosen, and where its config comes from."""


def choose_implementation(
    lhs: Float[Array, "*batch rows depth"],
    rhs: Float[Array, "depth columns"],
    *,
    axis_name: AxisName,
    op: Op = "all_gather_matmul",
    implementation: Implementation = "auto",
    config: Config | None = None,
    table: Table | None = None,
    devices_per_host: int | None = None,
    links: Links | None = None,
    out_dtype: jax.typing.DTypeLike | None = None,
    partial_dtype: jax.typing.DTypeLike | None = None,
) -> Choice:
    """Return what the function named ``op`` would run for the same operands, without running it.

    Takes the same arguments, raises the same errors, and must be called in the same context: inside ``jax.shard_map``.
    """
    if op not in get_args(Op):
        raise ValueError(f"{op=} must be one of {', '.join(get_args(Op))}")
    validate_operands(lhs, rhs, lhs.dtype if out_dtype is None else out_dtype, op)
    partial_dtype = lhs.dtype if partial_dtype is None else partial_dtype
    validate_partial_dtype(lhs, partial_dtype)
    if op == "matmul_reduce_scatter":
        validate_scattered_rows(lhs, axis_name)
    if implementation not in IMPLEMENTATIONS[op]:
        raise ValueError(f"{implementation=} must be one of {', '.join(IMPLEMENTATIONS[op])} for {op}")
    hosts, shape = find_hosts(axis_name, devices_per_host), _shape(lhs, rhs, axis_name, op)
    if implementation in ("ppermute_two_level", "xla"):
        if config is not None:
            raise ValueError(f"config is set, but {implementation=} takes none")
        if implementation == "ppermute_two_level" and hosts is None:
            raise ValueError(
                f"{implementation=} needs to know the hosts: pass devices_per_host, or axis_name=(host axis, device "
                f"axis) instead of {axis_name!r}"
            )
        return Choice(implementation, None, "named")
    kernel: Implementation = "mosaic_gpu" if implementation == "auto" else implementation
    if config is not None and type(config) is not (expected_type := config_type(kernel, op)):
        expected = "none" if expected_type is None else f"a {expected_type.__name__}"
        raise ValueError(f"config is a {type(config).__name__}, but {implementation=} takes {expected}")
    if implementation == "ppermute":
        return _configured(implementation, "named", config, shape, table)
    if implementation == "mosaic_gpu_simple" and out_dtype is not None and out_dtype != lhs.dtype:
        raise NotImplementedError(
            f"{implementation=} gives lhs.dtype={lhs.dtype}, not out_dtype={jnp.dtype(out_dtype)}"
        )
    if isinstance(config, SimpleKernelConfig):
        validate_shape(config, m_shard=shape.m_shard, k=shape.k, n_shard=shape.n_shard)
    if (reason := kernel_refusal(lhs, axis_name, hosts)) is None:
        validate_shard_map(axis_name)
        if implementation == "auto" and config is None:
            return _fastest(
                shape, table, jax.numpy.dtype(lhs.dtype if partial_dtype is None else partial_dtype).itemsize
            )
        reason = "named" if implementation != "auto" else "its config is named"
        return _configured(kernel, reason, config, shape, table)
    if implementation != "auto":
        raise NotImplementedError(f"{implementation=} can't run here: {reason}")
    portable, expected = _choose_ring(shape, hosts, links)
    reason = f"mosaic_gpu can't run here: {reason}{expected}"
    logger.info("implementation='auto' takes %s, as %s", portable, reason)
    if portable == "ppermute_two_level":
        return Choice(portable, None, reason)
    return _configured(portable, reason, None, shape, table)


def _shape(lhs: jax.Array, rhs: jax.Array, axis_name: AxisName, op: Op) -> Shape:
    rows, num_ranks = math.prod(lhs.shape[:-1]), lax.axis_size(axis_name)
    return Shape(
        device_kind=hardware.device_kind(),
        num_ranks=num_ranks,
        m_shard=rows if op == "all_gather_matmul" else rows // num_ranks,
        k=lhs.shape[-1],
        n_shard=rhs.shape[1],
        dtype=lhs.dtype.name,
        op=op,
    )


def _fastest(shape: Shape, table: Table | None, partial_bytes: int) -> Choice:
    """Choose for ``auto`` where every implementation can run."""
    config: Any = _choose_config("mosaic_gpu", shape, Table()).config
    sizes = {**shape.sizes, "num_sms": hardware.num_sms()}
    if shape.op == "all_gather_matmul":
        times_us = modelled_calls_us(config, **sizes)
    else:
        times_us = modelled_scatter_calls_us(config, **sizes, partial_bytes=partial_bytes)
    fastest: Any = min(times_us, key=lambda name: times_us[name])
    expected = ", ".join(f"{name} {time_us:.0f} us" for name, time_us in sorted(times_us.items()))
    reason = f"expected to be the fastest: {expected}"
    logger.info("implementation='auto' takes %s, %s", fastest, reason)
    if fastest == "xla":
        return Choice(fastest, None, reason)
    return _configured(fastest, reason, None, shape, table)


def _choose_ring(shape: Shape, hosts: TwoLevelRing | None, links: Links | None) -> tuple[Implementation, str]:
    """Return the portable ring that the cost model prefers, and its expected times as a suffix for the reason."""
    if hosts is None or hosts.num_hosts == 1 or shape.op == "matmul_reduce_scatter":
        return "ppermute", ""
    expected = cost.expected_rings(
        links or cost.default_links(shape.device_kind),
        peak_tflops=cost.peak_tflops(shape.device_kind, shape.dtype),
        m_shard=shape.m_shard,
        k=shape.k,
        n_shard=shape.n_shard,
        num_hosts=hosts.num_hosts,
        devices_per_host=hosts.devices_per_host,
        dtype=shape.dtype,
    )
    return (
        "ppermute_two_level" if expected.prefers_two_level else "ppermute",
        f"; over {hosts.num_hosts} hosts of {hosts.devices_per_host} ranks {expected}",
    )


def _configured(
    implementation: Implementation, reason: str, config: Config | None, shape: Shape, table: Table | None
) -> Choice:
    """Pair ``implementation`` with ``config``, or with the config chosen for the shape."""
    if config is not None:
        return Choice(implementation, config, reason)
    chosen = _choose_config(implementation, shape, table)
    return Choice(implementation, chosen.config, f"{reason}; its config {chosen.source}")


def _choose_config(implementation: Implementation, shape: Shape, table: Table | None) -> Chosen:
    """Choose the config for a shape.

    Raises:
      ValueError: no tiles of ``mosaic_gpu_simple`` divide the shape.
    """
    if implementation == "mosaic_gpu_simple":
        sizes = {"m_shard": shape.m_shard, "k": shape.k, "n_shard": shape.n_shard}
        return Chosen(simple_heuristic_config(**sizes), "by the heuristic")
    num_sms = hardware.num_sms() if implementation == "mosaic_gpu" else None
    return choose_config(implementation, shape, num_sms=num_sms, table=table)
