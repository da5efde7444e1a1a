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
    """Run one benchmark, on the gang that ``warm`` keeps for it, if any."""
    from jobs.driver.benchmark import BENCH
    from jobs.driver.run import run

    run(config, warm, outcome, BENCH)


def check(config: DictConfig) -> None:
    """Refuse mistakes that show before the job starts."""
    from jobs.driver.benchmark import BENCH
    from jobs.driver.naming import Naming
    from jobs.driver.opening import refuse_mistakes

    refuse_mistakes(config, BENCH, Naming.of_job())


if __name__ == "__main__":
    warm = WarmGang()
    entry.leave(entry.main(functools.partial(bench, warm), check, warm))
