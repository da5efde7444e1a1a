"""Requests, adapted to the NVLink domains of a gang's ranks."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.config.implementations import IMPLEMENTATIONS
from jobs.driver.ranks import Ranks
from jobs.errors import UsageError
from jobs.measure.programs import Request
from jobs.records.member import Member

_MAX_NAMED = 8


def fit_requests(requests: Sequence[Request], ranks: Ranks) -> tuple[list[Request], str | None]:
    """Return the requests that these ranks can run, and the reason if they differ from ``requests``.

    This is decided once Ray has placed the ranks. Only ``auto`` ever changes: over domains of different sizes it
    becomes ``ppermute``. Over domains of one size ``auto`` itself chooses between the rings.

    Raises:
      UsageError: ``kernel.implementation`` or ``timing.baselines`` names a kernel that needs one domain.
    """
    domains: dict[str, list[Member]] = {}
    for member in ranks.members:
        domains.setdefault(member.nvlink_domain, []).append(member)
    target, *baselines = requests
    if len(domains) == 1 or not ranks.on_gpus:
        return list(requests), None
    # The largest domain; the first of equals.
    inside = max(domains.values(), key=len)
    outside = [str(member) for member in ranks.members if member.nvlink_domain != inside[0].nvlink_domain]
    rule = f"needs all ranks in one NVLink domain; outside that of {inside[0]}: {_shortened(outside)}"
    if _needs_one_domain(target):
        raise UsageError(
            f"kernel.implementation={target.implementation} {rule}; use kernel=ppermute, or fewer ranks "
            f"(cluster.num_ranks={len(inside)})"
        )
    if refused := [request.implementation for request in baselines if _needs_one_domain(request)]:
        names = [request.implementation for request in baselines]
        raise UsageError(f"timing.baselines={names}: {refused[0]} {rule}; leave it out")
    if target.implementation != "auto" or ranks.layout.devices_per_host is not None:
        return list(requests), None
    unused = ", ".join(f"kernel.{option}" for option in target.config)
    without = f"; {unused}: of mosaic_gpu, so ppermute runs without" if unused else ""
    ring = Request("ppermute", "ppermute", table=target.table)
    others = [request for request in baselines if request.implementation != ring.implementation]
    return [ring, *others], f"auto takes ppermute: mosaic_gpu {rule}{without}"


def _needs_one_domain(request: Request) -> bool:
    return request.implementation in IMPLEMENTATIONS and IMPLEMENTATIONS[request.implementation].one_domain


def _shortened(names: Sequence[str]) -> str:
    """List of ranks, cut short to fit an error message."""
    rest = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
