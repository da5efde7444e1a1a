"""From what a gang's calls ran into to the error that the job reports: the cause, named by rank and host."""

from __future__ import annotations

import pickle
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from ray.exceptions import ActorDiedError, RayTaskError

from jobs.errors import EXIT_INFRASTRUCTURE, GangLost, InfrastructureError, JobError, UsageError
from jobs.gang.answers import Answer
from jobs.gang.messages import Failure, Place, Report
from jobs.gang.watchdog import describe_states

_MAX_NAMED = 8
# What jax raises where gloo or NCCL can't reach a peer, or waits for it in vain.
_LOST_PEER = re.compile(
    r"JaxRuntimeError: .*(Connection (closed|reset) by peer|Timed out waiting \d+ms for|remote process exited)"
)


class RankFailed(JobError):
    """The program raised on a rank: a bug, or a peer's death that could not be seen."""

    exit_code = EXIT_INFRASTRUCTURE
    status = "rank_failed"


def is_death(answer: Answer) -> bool:
    """Whether the actor itself was lost; an exception of its code is none."""
    return answer.error is not None and not isinstance(answer.error, RayTaskError)


def name_rank(places: Sequence[Place], rank: int) -> str:
    """``rank 1 on host7 (pid 123)``."""
    place = places[rank]
    return f"rank {rank} on {place.host} (pid {place.pid})" if place.pid else f"an actor that has no rank yet ({rank})"


def name_ranks(places: Sequence[Place], ranks: Iterable[int]) -> str:
    """Several of them, in order; a long list is cut short."""
    first, rest = sorted(ranks)[:_MAX_NAMED], sorted(ranks)[_MAX_NAMED:]
    return ", ".join(name_rank(places, rank) for rank in first) + (f" and {len(rest)} more" if rest else "")


def death_error(
    places: Sequence[Place], death: Answer, dead: Sequence[int], silent: Sequence[int], doing: str
) -> JobError:
    """Of the first ``death`` that was seen; ranks that are ``dead`` too, or ``silent``, are mentioned."""
    place = places[death.key]
    fate = "died" if isinstance(death.error, ActorDiedError) else "was lost"
    message = f"{name_rank(places, death.key)} {fate} while {doing}: {_reason(death.error)}"
    if place.pid:
        message += f" [what it printed: {place.host}:{place.stderr_path}]"
    if dead:
        message += f"; dead, too: {name_ranks(places, dead)}"
    return GangLost(message + _silent(places, silent), places)


def hang_error(
    places: Sequence[Place], reports: Mapping[int, Report], limit_s: float, doing: str, stacks: str
) -> JobError:
    """Of a gang that got nowhere for ``limit_s``; ranks without a report are unresponsive."""
    message = f"no progress for {limit_s:g} s while {doing}{_found(places, reports)}; stacks: {stacks}"
    return GangLost(message, places)


def silence_error(
    places: Sequence[Place],
    silent: Sequence[int],
    reports: Mapping[int, Report],
    limit_s: float,
    doing: str,
    stacks: str,
) -> JobError:
    """Of ranks that are frozen or cut off; Ray takes a minute to declare them dead."""
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
    """Of ranks that are too slow: a fresh gang would be no faster."""
    message = f"no answer within {timeout_s:g} s from {name_ranks(places, unfinished)} while {doing}"
    return InfrastructureError(f"{message}{_found(places, reports)}; stacks: {stacks}")


def session_error(places: Sequence[Place], answer: Answer, silent: Sequence[int], doing: str) -> JobError:
    """Of an exception that a rank's code raised; ``silent`` ranks are dead or don't answer."""
    if isinstance(answer.value, Failure):
        failure = answer.value
        if final := final_error(failure):
            return final
        what, tail = f"{failure.type_name}: {_one_line(failure.text)}", failure.traceback_tail
    else:
        what, tail = _one_line(str(answer.error).strip().splitlines()[-1]), str(answer.error)
    message = f"{name_rank(places, answer.key)} failed while {doing}: {what}{_cure(what)}{_silent(places, silent)}"
    if silent or _LOST_PEER.search(what):
        # A peer is gone or stuck, its host too perhaps, and Ray doesn't know yet: the exception is only its echo.
        return GangLost(f"{message}\n{tail}", places)
    return RankFailed(f"{message}\n{tail}")


def final_error(failure: Failure) -> JobError | None:
    """The error itself, where it says all: a JobError, or the validation of cmkernel."""
    if failure.pickled is not None:
        error = pickle.loads(failure.pickled)
        assert isinstance(error, JobError)
        return error
    by_cmkernel = failure.origin.split(".")[0] == "cmkernel"
    if by_cmkernel and failure.type_name in ("ValueError", "NotImplementedError"):
        return UsageError(failure.text)
    return None


def _cure(what: str) -> str:
    """What the user can do about an error whose own text doesn't say."""
    if "No suitable space found" in what:  # NCCL, when XLA registers one arena too many
        return (
            "; each live executable of mosaic_gpu maps XLA's whole arena: lower cluster.gpu_memory_fraction, which "
            "sets XLA_PYTHON_CLIENT_MEM_FRACTION"
        )
    return ""


def _found(places: Sequence[Place], reports: Mapping[int, Report]) -> str:
    """Who doesn't answer, and where the others are."""
    return _silent(places, set(range(len(places))) - set(reports)) + _states(reports)


def _states(reports: Mapping[int, Report]) -> str:
    return f"; {describe_states(reports)}" if reports else ""


def _silent(places: Sequence[Place], ranks: Collection[int]) -> str:
    return f"; unresponsive: {name_ranks(places, ranks)}" if ranks else ""


def _reason(error: BaseException | None) -> str:
    """Ray's account of a death without its advice, which takes half a page."""
    text = _one_line(str(error))
    detail = re.search(r"Worker exit detail: (.*?)(?: Some common causes|$)", text)
    return f"{type(error).__name__}: {detail[1] if detail else text}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
