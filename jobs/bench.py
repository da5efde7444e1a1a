"""``python -m jobs.bench``: measure the ring all-gather matmul over a gang of ranks, beside its baselines."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from jobs.driver import entry
from jobs.gang.warm_gang import WarmGang

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from jobs.driver.outcome import Outcome


def bench(warm: WarmGang, config: DictConfig, outcome: Outcome) -> None:
    """One job of this kind, on the gang that is kept for it, where there is one."""
    from jobs.driver.run import run

    run(config, warm, outcome)


if __name__ == "__main__":
    warm = WarmGang()
    entry.leave(entry.main(functools.partial(bench, warm), warm))
