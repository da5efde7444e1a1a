"""Judgement of a job's rows and its soak: the lines at the end of a job, and its verdict."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jobs.config.choices import World
from jobs.config.schema import Settings
from jobs.driver.outcome import Outcome
from jobs.errors import EXIT_CHECK_FAILED, EXIT_INFRASTRUCTURE
from jobs.results.analysis import soaking
from jobs.results.analysis.floors import slow_ranks
from jobs.results.analysis.standings import standings
from jobs.results.terminal import table
from jobs.results.terminal.wrapping import terminal_width, wrapped
from jobs.results.wandb.metrics import Scalar


def judge(outcome: Outcome, settings: Settings) -> dict[str, Scalar]:
    """Print the verdict and record it in ``outcome``.

    Return the W&B summary entries for restarts, islands and the soak.
    """
    if outcome.given_up:
        outcome.end("infrastructure_error", EXIT_INFRASTRUCTURE, " | ".join(outcome.given_up))
    failed = [row for row in outcome.rows if row.failed]
    if failed:
        named = ", ".join(f"{row.implementation} on {row.case}" for row in failed)
        outcome.end("check_failed", EXIT_CHECK_FAILED, f"{len(failed)} of {len(outcome.rows)} rows are wrong: {named}")
    if slow := slow_ranks(outcome.rows, settings.health.min_tflops):
        more = f" and {len(slow) - 8} more" if len(slow) > 8 else ""
        outcome.end("too_slow", EXIT_CHECK_FAILED, f"health.min_tflops: {'; '.join(slow[:8])}{more}")
    _print(table.footer_lines(outcome.rows, min_gain=settings.tuning.min_gain))
    summary: dict[str, Scalar] = {
        "given_up": len(outcome.given_up),
        "restarts": outcome.restarts,
        "restart_s": round(outcome.restart_s, 1),
    }
    if settings.cluster.world is World.per_island:
        summary |= _judge_islands(outcome, settings)
    if outcome.soak:
        summary |= _judge_soak(outcome)
    return summary


def _judge_islands(outcome: Outcome, settings: Settings) -> dict[str, Scalar]:
    """Rank islands and ranks, and fail the job if one is an outlier; return their W&B summary entries."""
    ranking = standings(outcome.rows, outlier_z=settings.cluster.outlier_z)
    _print(ranking.lines())
    if outliers := ranking.outliers:
        named = "; ".join(f"{standing.name}: {standing.worst}" for standing in outliers[:8])
        outcome.end("outlier", EXIT_CHECK_FAILED, f"{len(outliers)} of the islands and ranks are too slow: {named}")
    slowest = {"slowest_island": ranking.islands[0].name} if ranking.islands else {}
    return {"islands": ranking.num_islands, "outliers": len(outliers), **slowest}


def _judge_soak(outcome: Outcome) -> dict[str, Scalar]:
    """Fail the job if an iteration was wrong or memory grew; return the soak's W&B summary entries."""
    _print(soaking.lines(outcome.soak))
    soaked = soaking.soaked(outcome.soak)
    if wrong := [one for one in soaked if one.num_wrong]:
        named = "; ".join(f"{one.num_wrong} of {one.iterations}, first {one.first_wrong}, {one.name}" for one in wrong)
        outcome.end("check_failed", EXIT_CHECK_FAILED, f"iterations of the soak are wrong: {named}")
    if growing := [one for one in soaked if one.grows]:
        named = "; ".join(f"{(one.growth_bytes or 0) / 2**20:+.0f} MiB, {one.name}" for one in growing)
        outcome.end("memory_growth", EXIT_CHECK_FAILED, f"the ranks' memory grows: {named}")
    drifts = [abs(one.drift) for one in soaked if one.drift is not None]
    return {
        "soak/iterations": sum(one.iterations for one in soaked),
        "soak/wrong": sum(one.num_wrong for one in soaked),
        "soak/slow": sum(one.num_slow for one in soaked),
        "soak/largest_growth_mib": max(one.growth_bytes or 0 for one in soaked) / 2**20,
        **({"soak/largest_drift_pct": 100 * max(drifts)} if drifts else {}),
    }


def _print(lines: Sequence[str]) -> None:
    for line in wrapped(lines, terminal_width(sys.stdout)):
        print(line, flush=True)
