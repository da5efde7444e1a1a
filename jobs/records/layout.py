"""Layout of ranks on hosts, and the links between them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from cmkernel import cost

if TYPE_CHECKING:
    from jobs.records.case import Case

TWO_LEVEL = "ppermute_two_level"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Hosts with their ranks, numbered host by host."""

    ranks_per_host: tuple[int, ...]
    """Number of ranks on each host, in the order of the ranks."""
    links: cost.Links

    @property
    def num_hosts(self) -> int:
        """Number of hosts with a rank."""
        return len(self.ranks_per_host)

    @property
    def devices_per_host(self) -> int | None:
        """Number of ranks on each host; ``None`` if hosts differ."""
        return self.ranks_per_host[0] if len(set(self.ranks_per_host)) == 1 else None

    @property
    def two_level_refusal(self) -> str | None:
        """Reason why the two-level ring can't run over these hosts; ``None`` if it can."""
        if self.devices_per_host is not None:
            return None
        counts = ", ".join(map(str, self.ranks_per_host))
        return f"needs the same number of ranks on each host, and the {self.num_hosts} hosts have {counts}"

    def expected_rings(self, case: Case, device_kind: str) -> cost.ExpectedRings | None:
        """Modelled times of both rings of an all-gather matmul; ``None`` if hosts differ in their number of ranks."""
        if self.devices_per_host is None:
            return None
        return cost.expected_rings(
            self.links,
            peak_tflops=cost.peak_tflops(device_kind, case.dtype),
            m_shard=case.m_shard,
            k=case.k,
            n_shard=case.n_shard,
            num_hosts=self.num_hosts,
            devices_per_host=self.devices_per_host,
            dtype=case.dtype,
        )
