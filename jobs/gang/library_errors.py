"""Library errors that only their text identifies: every pattern, with the library and version it was read from.

Check these patterns again when a version in the locks changes.
"""

from __future__ import annotations

import re

# gloo in jaxlib 0.11.2 (the first two), and NCCL 2.30.7: a peer can't be reached, or didn't answer in time.
_LOST_PEER = re.compile(r"Connection (closed|reset) by peer|Timed out waiting \d+ms for|remote process exited")
# NCCL 2.30.7: XLA registers one memory arena more than NCCL has address space for.
_NO_ADDRESS_SPACE = "No suitable space found"
# Ray 2.60.0: ActorDiedError holds the raylet's account of a death only as text, followed by half a page of advice.
_EXIT_DETAIL = re.compile(r"Worker exit detail: (.*?)(?: Some common causes|$)")
# Ray 2.60.0: the C++ log line of a driver whose token the head refuses. The driver then retries until it is killed.
_TOKEN_REFUSED = b"InvalidAuthToken"
# Python 3.12's end of a traceback, whose message may span lines; Ray 2.60.0's C++ code logs one line before it aborts.
_TRACEBACK = "Traceback (most recent call last):\n"
_RAISED = re.compile(r"^[^\W\d][\w.]*(?:: .*)?$", re.MULTILINE)
_ABORTED = re.compile(r"Check failed: .*$", re.MULTILINE)
# Text that others write behind a message: log lines, stacks of C++, the interpreter.
_OTHER_OUTPUT = re.compile(r"^(?:[\[(]?\d{4}-\d\d-\d\d|\[.*\d{4}-\d\d-\d\d|\*\*\* |Fatal Python error)", re.MULTILINE)
_MAX_FATAL_LINES = 20
# Ray 2.60.0 (ray._private.utils.check_version_info): the driver's Ray or Python isn't the cluster's.
_OTHER_VERSION = "Version mismatch: The cluster was started with:"


def is_lost_peer(type_name: str, text: str) -> bool:
    """Return whether jax raised this because a peer is gone or stuck."""
    return type_name == "JaxRuntimeError" and _LOST_PEER.search(text) is not None


def cure(text: str) -> str:
    """Cure to append to an error whose own text names none; empty if unknown."""
    if _NO_ADDRESS_SPACE in text:
        return (
            "; each live executable of mosaic_gpu maps XLA's whole arena: lower cluster.gpu_memory_fraction, which "
            "sets XLA_PYTHON_CLIENT_MEM_FRACTION"
        )
    return ""


def exit_detail(text: str) -> str:
    """Ray's account of a worker's death, without its advice."""
    detail = _EXIT_DETAIL.search(text)
    return detail[1] if detail else text


def refuses_token(stderr: bytes) -> bool:
    """Return whether a driver that wrote ``stderr`` was refused because of its token."""
    return _TOKEN_REFUSED in stderr


def is_version_mismatch(text: str) -> bool:
    """Return whether Ray refused this process because of its version."""
    return _OTHER_VERSION in text


def fatal_error(stderr: bytes) -> str | None:
    """Last error in the output of a process, all its lines in one: of a Python traceback, or of C++ that aborted."""
    text = stderr.decode(errors="replace")
    if aborted := _ABORTED.findall(text):
        return str(aborted[-1])
    raised = _RAISED.search(text, text.rfind(_TRACEBACK) + len(_TRACEBACK)) if _TRACEBACK in text else None
    if raised is None:
        return None
    message = _OTHER_OUTPUT.split(text[raised.start() :], maxsplit=1)[0]
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " ".join(lines[:_MAX_FATAL_LINES])
