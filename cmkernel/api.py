"""The public function: validate, choose an implementation, run it; never fall back silently."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax

from cmkernel import cost, gradient, hardware, mosaic_gpu, mosaic_gpu_simple, ppermute, xla
from cmkernel.config import CONFIG_TYPES, KernelConfig, SimpleKernelConfig, validate_shape
from cmkernel.cost import Links
from cmkernel.ring import TwoLevelRing
from cmkernel.tuning import heuristic_config, simple_heuristic_config

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Implementation = Literal["auto", "mosaic_gpu", "mosaic_gpu_simple", "ppermute", "ppermute_two_level", "xla"]
AxisName = str | tuple[str, str]

logger = logging.getLogger(__name__)

_DTYPES = (jnp.float16, jnp.bfloat16, jnp.float32)
# Each ring, and the same with the shards that it received as a second result.
_RINGS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mosaic_gpu": (mosaic_gpu.ring_all_gather_matmul, mosaic_gpu.ring_all_gather_matmul_with_received),
    "mosaic_gpu_simple": (
        mosaic_gpu_simple.ring_all_gather_matmul,
        mosaic_gpu_simple.ring_all_gather_matmul_with_received,
    ),
    "ppermute": (ppermute.ring_all_gather_matmul, ppermute.ring_all_gather_matmul_with_received),
    "ppermute_two_level": (ppermute.two_level_all_gather_matmul, ppermute.two_level_all_gather_matmul_with_received),
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a call really runs: never ``auto``."""

    implementation: Implementation
    config: KernelConfig | SimpleKernelConfig | None
    """Tiles of the ``mosaic_gpu`` kernels; ``None`` for the others."""
    reason: str
    """Why this one."""


def all_gather_matmul(
    lhs: Float[Array, "*batch m_shard k"],
    rhs: Float[Array, "k n_shard"],
    *,
    axis_name: AxisName,
    implementation: Implementation = "auto",
    config: KernelConfig | SimpleKernelConfig | None = None,
    devices_per_host: int | None = None,
    links: Links | None = None,
    out_dtype: jax.typing.DTypeLike | None = None,
    save_gathered_lhs: bool = False,
) -> Float[Array, "*batch m n_shard"]:
    """``all_gather(lhs, axis=-2) @ rhs`` over mesh axis ``axis_name``, for use inside ``jax.shard_map``.

    Per rank: lhs ``[m_shard, k]``, rhs ``[k, n_shard]``, both f16, bf16 or f32 (f32 not with the ``mosaic_gpu``
    kernels); result ``[axis_size * m_shard, n_shard]`` in ``out_dtype``, accumulated in float32 and rounded once. Rows
    ``[i * m_shard, (i + 1) * m_shard)`` come from rank ``i``. ``jax.shard_map`` needs ``check_vma=False``.

    With a batch, lhs ``[batch, m_shard, k]`` gives ``[batch, axis_size * m_shard, n_shard]``, with the same order of
    rows in each element. It is one multiply of ``batch * m_shard`` rows. Its result comes out rank by rank, so a batch
    above 1 costs one copy of the result, and one of its cotangent in the backward pass.

    Differentiable in reverse mode, with one backward pass for all implementations: ``cmkernel.gradient``. It computes
    ``d_lhs`` by a matmul and a reduce-scatter in float32, and ``d_rhs`` from the gathered lhs. Not for ``jax.jvp``, and
    with the ``mosaic_gpu`` kernels not for ``jax.vmap``: both raise.

    Args:
      lhs: This rank's rows of the left operand.
      rhs: This rank's columns of the right operand.
      axis_name: Mesh axis that the rows of lhs are sharded over; or two, (host axis, device axis), with the ranks of a
        host along the second. The ``mosaic_gpu`` kernels need one axis, which covers all devices.
      implementation: ``mosaic_gpu`` (one Pallas kernel, Hopper), ``mosaic_gpu_simple`` (its readable form),
        ``ppermute`` (portable ring), ``ppermute_two_level`` (the same over hosts: ``cmkernel.ring.TwoLevelRing``) or
        ``xla`` (all-gather, then matmul) run just that or raise. ``auto`` takes ``mosaic_gpu`` where it can run, else
        the portable ring that ``cmkernel.cost`` expects to be faster, and logs why.
      config: ``KernelConfig`` of ``mosaic_gpu``, ``SimpleKernelConfig`` of ``mosaic_gpu_simple``; by default chosen
        from the shape.
      devices_per_host: With a single axis: it runs host by host, over so many ranks on each. A host is what NVLink
        joins, so ``mosaic_gpu`` runs on one only. ``None``: not known, ``auto`` takes the flat ring.
      links: Bandwidths by which ``auto`` chooses between the portable rings; by default ``cost.default_links``.
      out_dtype: Of the result: that of the operands, which is the default, or float32 (not with
        ``mosaic_gpu_simple``).
      save_gathered_lhs: Where the gradient takes the gathered lhs from. ``False`` keeps lhs and gathers it again in the
        backward pass: one more all-gather, which may overlap with the multiply for ``d_lhs``. ``True`` keeps the
        gathered lhs, ``axis_size`` times the memory. No implementation communicates more for it: ``xla`` has it anyway,
        the rings copy it once, from the shards that they received. Under ``jax.checkpoint`` what is kept comes from the
        repeated forward pass and lives no longer than that layer's backward pass, so ``True`` is cheap there.

    Raises:
      ValueError: The operands or ``config`` break a rule; the message names the value and the rule.
      NotImplementedError: ``implementation`` can't run here, on these dtypes or on this mesh.
    """
    choice = choose_implementation(
        lhs,
        rhs,
        axis_name=axis_name,
        implementation=implementation,
        config=config,
        devices_per_host=devices_per_host,
        links=links,
        out_dtype=out_dtype,
    )
    multiply, multiply_and_gather = _passes(
        choice, axis_name, _hosts(axis_name, devices_per_host), lhs.dtype if out_dtype is None else out_dtype
    )
    product = gradient.differentiable(
        multiply, multiply_and_gather, axis_name=axis_name, save_gathered_lhs=save_gathered_lhs
    )
    *batch, m_shard, k = lhs.shape
    out = product(lhs.reshape(-1, k), rhs)
    # [axis_size, *batch, m_shard, n_shard] -> [*batch, axis_size, m_shard, n_shard]
    by_rank = out.reshape(-1, *batch, m_shard, rhs.shape[1])
    return jnp.moveaxis(by_rank, 0, -3).reshape(*batch, -1, rhs.shape[1])


def choose_implementation(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    axis_name: AxisName,
    implementation: Implementation = "auto",
    config: KernelConfig | SimpleKernelConfig | None = None,
    devices_per_host: int | None = None,
    links: Links | None = None,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> Choice:
    """What ``all_gather_matmul`` runs for the same operands; raises what it raises. Call it in the same context."""
    _validate_operands(lhs, rhs, lhs.dtype if out_dtype is None else out_dtype)
    if implementation not in get_args(Implementation):
        raise ValueError(f"{implementation=} must be one of {', '.join(get_args(Implementation))}")
    hosts = _hosts(axis_name, devices_per_host)
    if implementation in ("ppermute", "ppermute_two_level", "xla"):
        if config is not None:
            raise ValueError(f"config is set, but {implementation=} has no tiles")
        if implementation == "ppermute_two_level" and hosts is None:
            raise ValueError(
                f"{implementation=} needs to know the hosts: pass devices_per_host, or axis_name=(host axis, device "
                f"axis) instead of {axis_name!r}"
            )
        return Choice(implementation, None, "named")
    kernel: Implementation = "mosaic_gpu" if implementation == "auto" else implementation
    if config is not None and type(config) is not CONFIG_TYPES[kernel]:
        expected = CONFIG_TYPES[kernel].__name__
        raise ValueError(f"config is a {type(config).__name__}, but {implementation=} takes a {expected}")
    if implementation == "mosaic_gpu_simple" and out_dtype is not None and out_dtype != lhs.dtype:
        raise NotImplementedError(f"{implementation=} gives lhs.dtype={lhs.dtype}, not {out_dtype=}")
    if isinstance(config, SimpleKernelConfig):
        validate_shape(config, m_shard=math.prod(lhs.shape[:-1]), k=lhs.shape[-1], n_shard=rhs.shape[1])
    if (reason := _refusal(lhs, axis_name, hosts)) is None:
        return Choice(
            kernel,
            config if config is not None else _heuristic_config(kernel, lhs, rhs, axis_name),
            "named" if implementation != "auto" else "fits",
        )
    if implementation != "auto":
        raise NotImplementedError(f"{implementation=} can't run here: {reason}")
    portable, expected = _choose_ring(lhs, rhs, hosts, links)
    reason = f"mosaic_gpu can't run here: {reason}{expected}"
    logger.info("implementation='auto' takes %s, as %s", portable, reason)
    return Choice(portable, None, reason)


def _hosts(axis_name: AxisName, devices_per_host: int | None) -> TwoLevelRing | None:
    """How the ranks lie on hosts, or ``None`` where the caller doesn't say."""
    if isinstance(axis_name, tuple):
        if len(axis_name) != 2:
            raise ValueError(f"{axis_name=} must be one axis, or two: (host axis, device axis)")
        num_hosts, size = map(lax.axis_size, axis_name)
        if devices_per_host not in (None, size):
            raise ValueError(f"{devices_per_host=} must be left out, or {size}, the size of axis {axis_name[1]!r}")
        return TwoLevelRing(num_hosts, size)
    if devices_per_host is None:
        return None
    num_ranks = lax.axis_size(axis_name)
    if devices_per_host < 1 or num_ranks % devices_per_host:
        raise ValueError(f"{devices_per_host=} must divide {num_ranks=}, the size of axis {axis_name!r}")
    return TwoLevelRing(num_ranks // devices_per_host, devices_per_host)


def _choose_ring(
    lhs: jax.Array, rhs: jax.Array, hosts: TwoLevelRing | None, links: Links | None
) -> tuple[Implementation, str]:
    """The portable ring that the cost model prefers, and the expected times, to be added to a reason."""
    if hosts is None or hosts.num_hosts == 1:
        return "ppermute", ""
    kind, dtype = jax.local_devices()[0].device_kind, lhs.dtype.name
    expected = cost.expected_rings(
        links or cost.default_links(kind),
        peak_tflops=cost.peak_tflops(kind, dtype),
        m_shard=math.prod(lhs.shape[:-1]),
        k=lhs.shape[-1],
        n_shard=rhs.shape[1],
        num_hosts=hosts.num_hosts,
        devices_per_host=hosts.devices_per_host,
        dtype=dtype,
    )
    return (
        "ppermute_two_level" if expected.prefers_two_level else "ppermute",
        f"; over {hosts.num_hosts} hosts of {hosts.devices_per_host} ranks {expected}",
    )


def _passes(
    choice: Choice, axis_name: AxisName, hosts: TwoLevelRing | None, out_dtype: jax.typing.DTypeLike
) -> tuple[gradient.Multiply, gradient.MultiplyAndGather]:
    """The forward pass of ``choice``, without and with the gathered lhs as a second result."""
    options: dict[str, Any] = {"axis_name": axis_name}
    if choice.implementation != "mosaic_gpu_simple":
        options["out_dtype"] = out_dtype
    if choice.implementation == "xla":
        return (
            functools.partial(xla.all_gather_then_dot, **options),
            functools.partial(xla.all_gather_then_dot_with_lhs, **options),
        )
    if choice.config is not None:
        options["config"] = choice.config
    # Also how many shards in a row are of one host, in what the ring leaves behind.
    per_host: dict[str, int] = {}
    if choice.implementation == "ppermute_two_level":
        assert hosts is not None
        per_host["devices_per_host"] = hosts.devices_per_host
    ring, ring_with_received = _RINGS[choice.implementation]

    def multiply(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return ring(lhs, rhs, **options, **per_host)

    def multiply_and_gather(lhs: jax.Array, rhs: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, received = ring_with_received(lhs, rhs, **options, **per_host)
        return out, gradient.in_rank_order(lhs, received, axis_name=axis_name, **per_host)

    if choice.config is None:
        return multiply, multiply_and_gather
    return _not_batched(multiply), _not_batched(multiply_and_gather)


def _not_batched(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, refused under ``jax.vmap``: its kernel counts arrivals once a call, not once a batch element."""
    refused = jax.custom_batching.custom_vmap(function)

    @refused.def_vmap
    def _refuse(axis_size: int, *_: Any) -> Any:
        raise NotImplementedError(
            f"jax.vmap of {axis_size=} over the kernel isn't supported; pass lhs as [batch, m_shard, k], or use "
            'implementation="ppermute"'
        )

    return refused


def _validate_operands(lhs: jax.Array, rhs: jax.Array, out_dtype: jax.typing.DTypeLike) -> None:
    if lhs.ndim not in (2, 3) or rhs.ndim != 2:
        raise ValueError(f"{lhs.shape=} and {rhs.shape=} must be [m_shard, k] or [batch, m_shard, k], and [k, n_shard]")
    if lhs.shape[-1] != rhs.shape[0]:
        raise ValueError(f"{lhs.shape=} and {rhs.shape=} must agree in k, the columns of lhs and rows of rhs")
    if 0 in (*lhs.shape, *rhs.shape):
        raise ValueError(f"{lhs.shape=} and {rhs.shape=} must have no empty dimension")
    if lhs.dtype != rhs.dtype:
        raise ValueError(f"lhs.dtype={lhs.dtype} and rhs.dtype={rhs.dtype} must be the same")
    if lhs.dtype not in _DTYPES:
        raise ValueError(f"lhs.dtype={lhs.dtype} must be float16, bfloat16 or float32")
    if jnp.dtype(out_dtype) not in (lhs.dtype, jnp.float32):
        raise ValueError(f"out_dtype={jnp.dtype(out_dtype)} must be lhs.dtype={lhs.dtype} or float32")


def _refusal(lhs: jax.Array, axis_name: AxisName, hosts: TwoLevelRing | None) -> str | None:
    """Why neither kernel can run whatever its tiles, or ``None``."""
    if isinstance(axis_name, tuple):
        return f"{axis_name=} must be a single axis"
    if (reason := hardware.unsupported_reason(axis_name=axis_name)) is not None:
        return reason
    if lhs.dtype not in mosaic_gpu.SUPPORTED_DTYPES:
        return f"lhs.dtype={lhs.dtype} must be float16 or bfloat16"
    if hosts is not None and hosts.num_hosts > 1:
        return f"the ranks are on {hosts.num_hosts} hosts, and must be on one that NVLink joins"
    return None


def _heuristic_config(
    kernel: Implementation, lhs: jax.Array, rhs: jax.Array, axis_name: AxisName
) -> KernelConfig | SimpleKernelConfig:
    """The tiles that the shape gets; ``ValueError`` where ``mosaic_gpu_simple`` has none that divide it."""
    m_shard, k, n_shard = math.prod(lhs.shape[:-1]), lhs.shape[-1], rhs.shape[1]
    if kernel == "mosaic_gpu_simple":
        return simple_heuristic_config(m_shard=m_shard, k=k, n_shard=n_shard)
    num_ranks, num_sms = lax.axis_size(axis_name), hardware.num_sms()
    return heuristic_config(m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=num_ranks, num_sms=num_sms)
