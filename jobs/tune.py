"""``python -m jobs.tune``: find the fastest config of each case, and write it to a table of tuned configs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from jobs.driver import entry
from jobs.gang.warm_gang import WarmGang

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from jobs.driver.outcome import Outcome


def tune(warm: WarmGang, config: DictConfig, outcome: Outcome) -> None:
    """Tune once, on the gang that ``warm`` keeps for it, if any."""
    from jobs.driver.run import run
    from jobs.driver.tuner import TUNE

    run(config, warm, outcome, TUNE)


def check(config: DictConfig) -> None:
    """Refuse mistakes that show before the job starts."""
    from jobs.driver.naming import Naming
    from jobs.driver.opening import refuse_mistakes
    from jobs.driver.tuner import TUNE

    refuse_mistakes(config, TUNE, Naming.of_job())


if __name__ == "__main__":
    warm = WarmGang()
    entry.leave(entry.main(functools.partial(tune, warm), check, warm))
