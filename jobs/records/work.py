"""Work of a case: its multiplies, its traffic, and the time that a device's rates allow."""

from __future__ import annotations

from cmkernel import cost
from jobs.records.case import Case
from jobs.records.op import Op

# A backward pass has two multiplies for each one of the forward.
_MULTIPLIES = {Op.mlp: 3, Op.mlp_grad: 9}
# Gathers and reduce-scatters of the input's size. ``mlp_grad`` gathers the input twice, as only its shard is kept for
# the backward pass, and the gradient of the result once; it scatters the result and the gradient of the input.
_EXCHANGES = {Op.mlp: (1, 1), Op.mlp_grad: (3, 2)}


def flops(case: Case) -> int:
    """Floating-point operations of one rank's multiplies."""
    sizes = {"m_shard": case.m_shard, "k": case.k, "n_shard": case.n_shard, "num_ranks": case.num_ranks}
    return _MULTIPLIES.get(case.op, 1) * cost.flops(**sizes)


def exchanged_bytes(case: Case) -> int:
    """Bytes that a rank sends to each of the others in a call."""
    if case.op is Op.matmul_reduce_scatter:
        return cost.gathered_bytes(m_shard=case.m_shard, k=case.n_shard, num_ranks=1, dtype=case.sent_dtype)
    gathers, scatters = _EXCHANGES.get(case.op, (1, 0))
    return sum(
        number * cost.gathered_bytes(m_shard=case.m_shard, k=case.k, num_ranks=1, dtype=dtype)
        for number, dtype in ((gathers, case.dtype), (scatters, case.sent_dtype))
    )


def least_bytes(case: Case) -> int:
    """Memory that a rank needs at least: operands, the full operand or partial sums, results, the check's results.

    The check computes its results in float32. What XLA needs beside these isn't counted.
    """
    rows, itemsize = case.num_ranks * case.m_shard, cost.ITEMSIZE[case.dtype]
    if case.op is Op.matmul_reduce_scatter:
        operands, full, result = rows * case.k + case.k * case.n_shard, 0, case.m_shard * case.n_shard
        sent = rows * case.n_shard
    elif case.op is Op.all_gather_matmul:
        operands, full, result = case.m_shard * case.k + case.k * case.n_shard, rows * case.k, rows * case.n_shard
        sent = 0
    else:
        operands, full = case.m_shard * case.k + 3 * case.k * case.n_shard, rows * (case.k + 2 * case.n_shard)
        result, sent = case.m_shard * case.k, rows * case.k
    return itemsize * (operands + full + result) + cost.ITEMSIZE[case.sent_dtype] * sent + 4 * result


def expected_time(case: Case, device: cost.DeviceModel) -> cost.ExpectedTime:
    """Roofline of the case on ``device``."""
    return cost.roofline(device, flops=flops(case), exchanged_bytes=exchanged_bytes(case), num_ranks=case.num_ranks)
