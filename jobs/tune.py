"""``python -m jobs.tune``: find the fastest config of each case, and write it to a table of tuned configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs import entry

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from jobs.results.outcome import Outcome


def tune(config: DictConfig) -> Outcome:
    """One job of this kind."""
    from jobs.run import run
    from jobs.tuner import Tuner

    return run(config, Tuner)


if __name__ == "__main__":
    entry.leave(entry.main(tune))
