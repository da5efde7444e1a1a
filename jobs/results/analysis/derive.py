"""Figures computed from the headline time of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cmkernel import cost
from jobs.records.case import Case
from jobs.records.row import Derived


def fastest_us(names: Sequence[str], headlines: Mapping[str, float | None]) -> float | None:
    """Of the headline times by implementation, the least of those named; ``None`` where none of them was measured."""
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
    """Figures for a row whose headline time is ``t = headline_us``, in microseconds; ``D`` is the number of ranks.

    - ``tflops_per_gpu = 2 * (D * m_shard) * k * n_shard / t``, in TFLOP/s.
    - ``utilisation``: that over the device's dense tensor-core peak for the dtype (``cmkernel.cost``, from datasheets).
    - ``ratio_to_local = t / local_us``, where ``local`` is the same multiply without communication, the faster of
      XLA's and cuBLAS's where both were measured.
    - ``speedup_over_xla = xla_us / t``, where ``xla`` is all-gather, then dot: the faster of
      XLA's and cuBLAS's multiply, too.
    - ``bus_bandwidth_gbps``: nccl-tests, doc/PERFORMANCE.md, "AllGather": ``algbw = S / t`` with ``S`` the bytes of the
      gathered lhs, ``busbw = algbw * (D - 1) / D``, in GB/s (1e9 bytes). Here ``t`` holds the multiply too, so it is a
      lower bound of what the links do.
    - ``overlap_efficiency = (xla_us - t) / (xla_us - local_us)``: 0 for ``xla``, 1 for ``local``. Not defined where xla
      is no slower than local, or where a single rank has nothing to exchange.
    - ``article_bound_us = local_us + 6 * (D - 1)``: the article's lower bound, from the measured ``local``.

    Args:
      case: the problem.
      headline_us: maximum over ranks of the row's headline time.
      local_us: the same of the faster ``local``; ``None`` where none was measured.
      xla_us: the same of the faster ``xla``.
      device_kind: jax's name of the devices.
      communicates: false for the local multiplies, which have no bus bandwidth.

    Raises:
      ValueError: a time isn't positive.
    """
    for name, time_us in (("headline_us", headline_us), ("local_us", local_us), ("xla_us", xla_us)):
        if time_us is not None and not time_us > 0:
            raise ValueError(f"{case}: {name}={time_us} must be greater than 0")
    num_ranks = case.num_ranks
    flops = cost.flops(m_shard=case.m_shard, k=case.k, n_shard=case.n_shard, num_ranks=num_ranks)
    tflops = flops / headline_us * 1e-6
    peak = cost.peak_tflops(device_kind, case.dtype)
    return Derived(
        tflops_per_gpu=tflops,
        utilisation=tflops / peak if peak else None,
        ratio_to_local=headline_us / local_us if local_us else None,
        speedup_over_xla=xla_us / headline_us if xla_us else None,
        bus_bandwidth_gbps=_bus_bandwidth_gbps(case, headline_us) if communicates else None,
        overlap_efficiency=_overlap(headline_us, local_us, xla_us) if num_ranks > 1 else None,
        article_bound_us=cost.article_bound_us(local_us, num_ranks) if local_us else None,
    )


def _bus_bandwidth_gbps(case: Case, time_us: float) -> float:
    size = cost.gathered_bytes(m_shard=case.m_shard, k=case.k, num_ranks=case.num_ranks, dtype=case.dtype)
    return size / time_us * 1e-3 * (case.num_ranks - 1) / case.num_ranks


def _overlap(time_us: float, local_us: float | None, xla_us: float | None) -> float | None:
    if local_us is None or xla_us is None or xla_us <= local_us:
        return None
    return (xla_us - time_us) / (xla_us - local_us)
