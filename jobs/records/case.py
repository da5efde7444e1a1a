"""Cases: the problems that a job measures."""

from __future__ import annotations

import dataclasses

from jobs.records.op import Op


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One problem, with sizes on each of ``num_ranks`` ranks. ``D`` stands for ``num_ranks``.

    - ``all_gather_matmul``: lhs ``[m_shard, k]``, rhs ``[k, n_shard]`` -> ``[D * m_shard, n_shard]``.
    - ``matmul_reduce_scatter``: lhs ``[D * m_shard, k]``, rhs ``[k, n_shard]`` -> ``[m_shard, n_shard]``. Here k and
      n_shard are the rows and columns of the rank's weight: n isn't split.
    - ``mlp``, ``mlp_grad``: input ``[m_shard, k]``, gate and up ``[k, n_shard]`` each, down ``[n_shard, k]`` ->
      ``[m_shard, k]``.
    """

    name: str
    m_shard: int
    k: int
    n_shard: int
    dtype: str
    num_ranks: int
    op: Op = Op.all_gather_matmul
    partial_dtype: str | None = None
    """Type of the partial sums that a reduce-scatter sends; ``None``: ``dtype``, or there is no reduce-scatter."""

    def __str__(self) -> str:
        sizes = f"m_shard={self.m_shard} k={self.k} n_shard={self.n_shard}"
        return f"{self.label} {sizes} {self.types} D={self.num_ranks}"

    @property
    def label(self) -> str:
        """Name of the case, with the operation unless that is the default one."""
        return self.name if self.op is Op.all_gather_matmul else f"{self.name} {self.op.short}"

    @property
    def types(self) -> str:
        """Type of the operands, with that of the partial sums if it differs."""
        return f"{self.dtype} partials={self.partial_dtype}" if self.partial_dtype else self.dtype

    @property
    def sent_dtype(self) -> str:
        """Type of the partial sums that a reduce-scatter sends."""
        return self.partial_dtype or self.dtype
