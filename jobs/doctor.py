"""``python -m jobs.doctor``: say what is wrong with a cluster, without a benchmark, in less than a minute.

It takes the config of ``jobs.bench``, and judges the cluster by what that job would need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.driver import entry

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from jobs.driver.outcome import Outcome


def doctor(config: DictConfig, outcome: Outcome) -> None:
    """One examination."""
    from jobs.driver.examination import examine

    examine(config, outcome)


def check(config: DictConfig) -> None:
    """Refuse mistakes that show before the examination starts."""
    from jobs.config.rules import to_settings

    to_settings(config)


if __name__ == "__main__":
    entry.leave(entry.main(doctor, check))
