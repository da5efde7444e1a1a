"""The command line before Hydra parses it: paths are taken as the shell gives them."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Options whose value is a path. Hydra's grammar would refuse a tilde, a space or a bracket in it.
PATHS = ("run_dir", "resume", "kernel.table", "tuning.table", "results.junit", "wandb.api_key_file")
_PATH = re.compile(rf"(?P<option>\+{{0,2}}(?:{'|'.join(map(re.escape, PATHS))}))=(?P<value>.+)", re.DOTALL)
# Values that mean something in Hydra's grammar: quoted ones, interpolations and lists to sweep over.
_IN_GRAMMAR = re.compile(r"""^["'].*["']$|\$\{|,""", re.DOTALL)
# Hydra's flags that print something instead of running the job.
_PRINTING = {"-c", "--cfg", "-i", "--info", "-h", "--help", "--hydra-help", "--version", "-sc", "--shell-completion"}
_PLAIN = re.compile(r"[\w./@%+-]+")


def with_quoted_paths(arguments: Sequence[str]) -> list[str]:
    """Quote the values of path options for Hydra where its grammar needs it: ``resume=~/x``, ``run_dir=/a b``."""
    return [_quoted(argument) for argument in arguments]


def runs_points(arguments: Sequence[str]) -> bool:
    """Return whether the command runs the points of a multirun, and doesn't only print something."""
    flags = {argument.partition("=")[0] for argument in arguments}
    is_multirun = bool(flags & {"-m", "--multirun"}) or "hydra.mode=MULTIRUN" in arguments
    return is_multirun and not flags & _PRINTING


def elsewhere(arguments: Sequence[str], folder: str) -> list[str]:
    """The same command line, with Hydra's own files of a multirun in ``folder``."""
    option = "hydra.sweep.dir"
    return [*(one for one in arguments if one.partition("=")[0] != option), f"{option}={quoted(folder)}"]


def quoted(value: str) -> str:
    """``value`` in quotes that Hydra understands."""
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", value) + "'"


def _quoted(argument: str) -> str:
    found = _PATH.fullmatch(argument)
    if found is None or _PLAIN.fullmatch(found["value"]) or _IN_GRAMMAR.search(found["value"]):
        return argument
    return f"{found['option']}={quoted(found['value'])}"
