"""What a job may run where its ranks are in several NVLink domains."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jobs.config.schema import Implementation, KernelSettings, Settings, kernel_config
from jobs.errors import UsageError
from jobs.gang.neighbours import layout
from jobs.records.member import Member

# They read and write each other's memory; the names of ``timing.baselines``, of which two are implementations, too.
_ONE_DOMAIN = ("mosaic_gpu", "mosaic_gpu_simple", "jax_ring", "torch_fused")


def settle_implementation(settings: Settings, members: Sequence[Member]) -> tuple[Settings, str | None]:
    """What ``auto`` is left with where the ranks are in several NVLink domains, and why it changes; else all as it was.

    Domains with the same number of ranks each leave all to ``auto``, which knows of them and chooses between the rings.

    Raises:
      UsageError: ``kernel.implementation`` or ``timing.baselines`` name a kernel that needs one domain.
    """
    ranks: dict[str, list[Member]] = {}
    for member in members:
        ranks.setdefault(member.nvlink_domain, []).append(member)
    if len(ranks) == 1 or not members[0].gpu_uuid:
        return settings, None
    # The largest domain, the first one where several are.
    inside = max(ranks, key=lambda domain: len(ranks[domain]))
    outside = [str(member) for member in members if member.nvlink_domain != inside]
    rule = f"needs all ranks in one NVLink domain; outside that of {ranks[inside][0]}: {_shortened(outside)}"
    implementation = settings.kernel.implementation
    if implementation.value in _ONE_DOMAIN:
        raise UsageError(
            f"kernel.implementation={implementation.value} {rule}; use kernel=ppermute, or fewer ranks "
            f"(cluster.num_ranks={len(ranks[inside])})"
        )
    if named := [name for name in settings.timing.baselines if name in _ONE_DOMAIN]:
        raise UsageError(f"timing.baselines={settings.timing.baselines}: {named[0]} {rule}; leave it out")
    if implementation is not Implementation.auto or layout(members, settings.cluster).devices_per_host is not None:
        return settings, None
    kernel = KernelSettings(implementation=Implementation.ppermute, table=settings.kernel.table)
    unused = [f"kernel.{option}" for option in kernel_config(settings.kernel)]
    without = f"; {', '.join(unused)}: of mosaic_gpu, so ppermute runs without" if unused else ""
    return dataclasses.replace(settings, kernel=kernel), f"auto takes ppermute: mosaic_gpu {rule}{without}"


def _shortened(names: Sequence[str]) -> str:
    """A list of ranks that fits an error."""
    rest = len(names) - 8
    return ", ".join(names[:8]) + (f" and {rest} more" if rest > 0 else "")
