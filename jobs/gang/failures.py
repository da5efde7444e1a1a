"""Errors that the job reports for a gang: each names the cause, the rank and the host."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable, Mapping, Sequence

from ray.exceptions import ActorDiedError, RayTaskError

from jobs.errors import EXIT_INFRASTRUCTURE, GangLost, InfrastructureError, JobError, UsageError, one_line
from jobs.gang.answers import Answer
from jobs.gang.library_errors import cure, exit_detail, is_lost_peer
from jobs.gang.messages import Failure, Place, Report
from jobs.gang.watchdog import describe_states

_MAX_NAMED = 8


class RankFailed(JobError):
    """The program raised on a rank: a bug, or an unnoticed death of a peer."""

    exit_code = EXIT_INFRASTRUCTURE
    status = "rank_failed"


def is_death(answer: Answer) -> bool:
    """Return whether the actor itself was lost; an exception in its code doesn't count."""
    return answer.error is not None and not isinstance(answer.error, RayTaskError)


def name_rank(places: Sequence[Place], rank: int) -> str:
    """``rank 1 on host7 (pid 123)``."""
    place = places[rank]
    return f"rank {rank} on {place.host} (pid {place.pid})" if place.pid else f"an actor that has no rank yet ({rank})"


def name_ranks(places: Sequence[Place], ranks: Iterable[int]) -> str:
    """Several ranks in ascending order, at most 8 by name."""
    first, rest = sorted(ranks)[:_MAX_NAMED], sorted(ranks)[_MAX_NAMED:]
    return ", ".join(name_rank(places, rank) for rank in first) + (f" and {len(rest)} more" if rest else "")


def death_error(
    places: Sequence[Place], death: Answer, dead: Sequence[int], silent: Sequence[int], doing: str, words: str = ""
) -> JobError:
    """Error for the first ``death`` seen; it also names the other ``dead`` ranks and the ``silent`` ones.

    ``words`` are the dead rank's last ones.
    """
    place = places[death.key]
    fate = "died" if isinstance(death.error, ActorDiedError) else "was lost"
    message = f"{name_rank(places, death.key)} {fate} while {doing}: {_reason(death.error)}"
    if place.pid:
        message += f" [its output: {place.host}:{place.stderr_path}]{words}"
    if dead:
        message += f"; also dead: {name_ranks(places, dead)}"
    return GangLost(message + _silent(places, silent), places)


def hang_error(
    places: Sequence[Place], reports: Mapping[int, Report], limit_s: float, doing: str, stacks: str
) -> JobError:
    """Error for a gang without progress for ``limit_s`` seconds; ranks without a report are unresponsive."""
    message = f"no progress for {limit_s:g} s while {doing}{_overview(places, reports)}; stacks: {stacks}"
    return GangLost(message, places)


def silence_error(
    places: Sequence[Place],
    silent: Sequence[int],
    reports: Mapping[int, Report],
    limit_s: float,
    doing: str,
    stacks: str,
) -> JobError:
    """Error for ranks that are frozen or cut off; Ray takes a minute to declare them dead."""
    message = f"no sign of life for {limit_s:g} s from {name_ranks(places, silent)} while {doing}"
    return GangLost(f"{message}{_states(reports)}; stacks: {stacks}", places)


def timeout_error(
    places: Sequence[Place],
    unfinished: Iterable[int],
    reports: Mapping[int, Report],
    timeout_s: float,
    doing: str,
    stacks: str,
) -> JobError:
    """Error for ranks that are too slow; a fresh gang would be no faster, so this is no ``GangLost``."""
    message = f"no answer within {timeout_s:g} s from {name_ranks(places, unfinished)} while {doing}"
    return InfrastructureError(f"{message}{_overview(places, reports)}; stacks: {stacks}")


def session_error(places: Sequence[Place], answer: Answer, silent: Sequence[int], doing: str) -> JobError:
    """Error for an exception in a rank's code; ``silent`` ranks are dead or don't answer."""
    if isinstance(answer.value, Failure):
        failure = answer.value
        if final := final_error(failure):
            return final
        text = one_line(failure.text)
        what, tail = f"{failure.type_name}: {text}", failure.traceback_tail
        lost_peer = is_lost_peer(failure.type_name, text)
    else:
        what, tail = one_line(str(answer.error).strip().splitlines()[-1]), str(answer.error)
        lost_peer = False
    message = f"{name_rank(places, answer.key)} failed while {doing}: {what}{cure(what)}{_silent(places, silent)}"
    if silent or lost_peer:
        # The exception is only the echo of a peer, perhaps a whole host, that is gone or stuck; Ray doesn't know yet.
        return GangLost(f"{message}\n{tail}", places)
    return RankFailed(f"{message}\n{tail}")


def final_error(failure: Failure) -> JobError | None:
    """The rank's own error if it needs no context: a ``JobError``, or a refusal by cmkernel's validation."""
    if failure.pickled is not None:
        error = pickle.loads(failure.pickled)
        assert isinstance(error, JobError)
        return error
    by_cmkernel = failure.origin.split(".")[0] == "cmkernel"
    if by_cmkernel and failure.type_name in ("ValueError", "NotImplementedError"):
        return UsageError(failure.text)
    return None


def _overview(places: Sequence[Place], reports: Mapping[int, Report]) -> str:
    """Ranks that don't answer, and where the others are."""
    return _silent(places, set(range(len(places))) - set(reports)) + _states(reports)


def _states(reports: Mapping[int, Report]) -> str:
    return f"; {describe_states(reports)}" if reports else ""


def _silent(places: Sequence[Place], ranks: Collection[int]) -> str:
    return f"; unresponsive: {name_ranks(places, ranks)}" if ranks else ""


def _reason(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {exit_detail(one_line(error))}"
