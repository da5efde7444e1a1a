"""Cases: the problems that a job measures."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One problem: lhs ``[m_shard, k]`` and rhs ``[k, n_shard]`` on each of ``num_ranks`` ranks."""

    name: str
    m_shard: int
    k: int
    n_shard: int
    dtype: str
    num_ranks: int

    def __str__(self) -> str:
        return f"{self.name} m_shard={self.m_shard} k={self.k} n_shard={self.n_shard} {self.dtype} D={self.num_ranks}"
