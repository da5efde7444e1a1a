"""``python -m jobs.bench``: measure the ring all-gather matmul over a gang of ranks, beside its baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs import entry

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from jobs.results.outcome import Outcome


def bench(config: DictConfig) -> Outcome:
    """One job of this kind."""
    from jobs.run import run

    return run(config)


if __name__ == "__main__":
    entry.leave(entry.main(bench))
