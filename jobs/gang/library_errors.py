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
# Python 3.12's last line of a traceback, and the line that Ray 2.60.0's C++ code logs before it aborts.
_FATAL_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|gaierror)\b.*$|Check failed: .*$", re.MULTILINE)


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


def fatal_line(stderr: bytes) -> str | None:
    """Last error in the output of a process: of a Python traceback, or of C++ code that aborted."""
    lines = [match[0] for match in _FATAL_LINE.finditer(stderr.decode(errors="replace"))]
    return lines[-1] if lines else None
