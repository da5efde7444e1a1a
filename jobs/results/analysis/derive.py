"""Figures computed from the headline time of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cmkernel import cost
from jobs.records.case import Case
from jobs.records.op import Op
from jobs.records.row import Derived
from jobs.records.work import exchanged_bytes, flops


def fastest_us(names: Sequence[str], headlines: Mapping[str, float | None]) -> float | None:
    """Smallest headline time of the implementations ``names``; ``None`` where none of them was measured."""
    times = [time_us for name in names if (time_us := headlines.get(name)) is not None]
    return min(times, default=None)


def derive(
    case: Case,
    headline_us: float,
    *,
    local_us: float | None,
    xla_us: float | None,
    device_kind: str,
    communicates: bool = True,
) -> Derived:
    """Compute the figures of a row. ``t = headline_us`` is in microseconds, ``D`` is the number of ranks.

    - ``tflops_per_gpu = flops / t``, in TFLOP/s, with ``flops = 2 * (D * m_shard) * k * n_shard`` for a multiply
      (``jobs.records.work``).
    - ``utilisation``: ``tflops_per_gpu`` over the device's dense tensor-core peak for the dtype, by its datasheet
      (``cmkernel.cost``).
    - ``ratio_to_local = t / local_us``: ``local`` is the same multiply without communication, by XLA or cuBLAS,
      whichever is faster.
    - ``speedup_over_xla = xla_us / t``: ``xla`` communicates and multiplies in turn, with XLA's or cuBLAS's multiply,
      whichever is faster.
    - ``bus_bandwidth_gbps``: nccl-tests, doc/PERFORMANCE.md, "AllGather" and "ReduceScatter": ``algbw = S / t`` with
      ``S`` the bytes of the gathered lhs, or of the partial sums of a rank, ``busbw = algbw * (D - 1) / D``, in GB/s
      (1e9 bytes). A layer adds up its collectives. ``t`` includes the multiply, so this is a lower bound of the links'
      bandwidth.
    - ``overlap_efficiency = (xla_us - t) / (xla_us - local_us)``: 0 for ``xla``, 1 for ``local``. ``None`` where xla is
      no slower than local, and for a single rank, which exchanges nothing.
    - ``article_bound_us = local_us + 6 * (D - 1)``: the lower bound of the JAX tutorial
      (https://docs.jax.dev/en/latest/pallas/gpu/collective_matmul.html), from the measured ``local``. For
      ``all_gather_matmul`` only.

    Args:
      case: the problem.
      headline_us: maximum over ranks of the row's headline time.
      local_us: likewise of the faster ``local``; ``None`` where none was measured.
      xla_us: likewise of the faster ``xla``.
      device_kind: name of the devices as jax has it.
      communicates: false for the local multiplies, which have no bus bandwidth.

    Raises:
      ValueError: a time isn't positive.
    """
    for name, time_us in (("headline_us", headline_us), ("local_us", local_us), ("xla_us", xla_us)):
        if time_us is not None and not time_us > 0:
            raise ValueError(f"{case}: {name}={time_us} must be greater than 0")
    num_ranks = case.num_ranks
    tflops = flops(case) / headline_us * 1e-6
    peak = cost.peak_tflops(device_kind, case.dtype)
    return Derived(
        tflops_per_gpu=tflops,
        utilisation=tflops / peak if peak else None,
        ratio_to_local=headline_us / local_us if local_us else None,
        speedup_over_xla=xla_us / headline_us if xla_us else None,
        bus_bandwidth_gbps=_bus_bandwidth_gbps(case, headline_us) if communicates else None,
        overlap_efficiency=_overlap(headline_us, local_us, xla_us) if num_ranks > 1 else None,
        article_bound_us=(
            cost.article_bound_us(local_us, num_ranks) if local_us and case.op is Op.all_gather_matmul else None
        ),
    )


def _bus_bandwidth_gbps(case: Case, time_us: float) -> float:
    return (case.num_ranks - 1) * exchanged_bytes(case) / time_us * 1e-3


def _overlap(time_us: float, local_us: float | None, xla_us: float | None) -> float | None:
    if local_us is None or xla_us is None or xla_us <= local_us:
        return None
    return (xla_us - time_us) / (xla_us - local_us)
