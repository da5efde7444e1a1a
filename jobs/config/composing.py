"""Hydra's errors in this project's words: the option first, then the rule."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.errors import OverrideParseException

from jobs.config.command_line import quoted
from jobs.config.options import renamed_option

_NO_OPTION = re.compile(r"Could not override '([^']+)'")
_NO_CHOICE = re.compile(r"Could not (?:find|load) '([^']+)/([^'/]+)'")
_NO_VALUE = re.compile(r"Error merging override (.+)")
_CONVERTED = re.compile(r"Value '.*' of type '\w+' could not be converted to (\w+)")
_ENUM = re.compile(r"Invalid value '.*', expected one of \[(.*)\]")
_NO_GROUP = "Config group override must be a string or a list"
_TYPES = {"Integer": "an integer", "Float": "a number", "Boolean": "true or false"}


def mistake(error: BaseException, arguments: Sequence[str]) -> str:
    """One line for an error of composing the config from the command line's ``arguments``."""
    lines = _lines(error)
    text = "; ".join(dict.fromkeys(lines))
    if isinstance(error, OverrideParseException):
        option, _, value = error.override.partition("=")
        return (
            f"{error.override} can't be parsed; for Hydra a value with brackets, spaces, quotes or a tilde needs "
            f'quotes of its own: "{option}={quoted(value)}"'
        )
    if renamed := renamed_option(text):
        return renamed
    if found := _NO_OPTION.search(text):
        return f"{found[1]} is no option; --help lists the options"
    if found := _NO_CHOICE.search(text):
        listed = lines[lines.index(f"Available options in '{found[1]}':") + 1 :] if "Available options" in text else []
        choices = [line for line in listed if re.fullmatch(r"[\w/.-]+", line)]
        return f"{found[1]}={found[2]} must be " + (f"one of {', '.join(choices)}" if choices else "a file of conf/")
    if _NO_GROUP in text:
        named = [one for one in arguments if re.fullmatch(r"\w+=(null|None|~)?", one)]
        return f"{', '.join(named) or text}: a group takes the name of a file in conf/, not null"
    if found := next(filter(None, map(_NO_VALUE.fullmatch, lines)), None):
        return f"{found[1]} {_rule(text) or '; '.join(lines[1:])}"
    return text


def _lines(error: BaseException) -> list[str]:
    causes = [error, *([error.__cause__] if error.__cause__ else [])]
    return [line.strip() for cause in causes for line in str(cause).splitlines() if line.strip()]


def _rule(text: str) -> str | None:
    if "is not a valid bool" in text:
        return "must be true or false"
    if found := _CONVERTED.search(text):
        return f"must be {_TYPES.get(found[1], found[1])}"
    if found := _ENUM.search(text):
        return f"must be one of {found[1]}"
    if "is not Optional" in text:
        return "must not be null"
    if "is not a ListConfig, list or tuple" in text:
        return "must be a list"
    return None
