"""``python -m jobs.compare BASE NEW``: compare runs of ``jobs.bench``, noise taken into account."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from jobs.comparison.comparison import compare
from jobs.comparison.examinations import Examination, compared, is_examination
from jobs.comparison.loading import load_side, refuse_repeated
from jobs.comparison.markdown import markdown
from jobs.comparison.table import text
from jobs.errors import EXIT_CHECK_FAILED, EXIT_INFRASTRUCTURE, EXIT_OK, JobError, UsageError
from jobs.output import keep_output
from jobs.records.row import HEADLINE, TIMES

_DESCRIPTION = """
Compares runs of jobs.bench, case by case, on their raw samples. A run is a run directory or a results.jsonl; a folder
of run directories stands for all of them. More runs a side show smaller differences. Two doctor.json of jobs.doctor are
compared as well: links, verdicts, hosts and GPUs. Exit code 0: compared; 1: a
regression, with --fail-over; 2: a file can't be read, or the sides have no case in common; 3: an unforeseen error.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the runs that the command line names, print the result and return the exit code."""
    keep_output()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    parser = _parser()
    options = parser.parse_args(arguments)
    base, new = _sides(parser, options)
    try:
        return _compare(base, new, options)
    except JobError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except Exception:
        # Python would exit with 1, which means a regression here.
        traceback.print_exc()
        return EXIT_INFRASTRUCTURE


def _compare(base_paths: Sequence[str], new_paths: Sequence[str], options: argparse.Namespace) -> int:
    examined = [is_examination(Path(path)) for path in (*base_paths, *new_paths)]
    if any(examined):
        return _compare_examinations(base_paths, new_paths, options, are_all=all(examined))
    base, new = load_side("BASE", base_paths), load_side("NEW", new_paths)
    refuse_repeated(base, new)
    comparison = compare(base, new, metric=options.metric, fail_over=options.fail_over, spread=options.spread)
    print(markdown(comparison) if options.markdown else text(comparison, colour=_has_colour()), end="", flush=True)
    if not comparison.rows and not comparison.regressions:
        raise UsageError(f"no case has a valid {options.metric} on both sides, so nothing can be compared")
    return EXIT_CHECK_FAILED if comparison.regressions else EXIT_OK


def _compare_examinations(
    base_paths: Sequence[str], new_paths: Sequence[str], options: argparse.Namespace, *, are_all: bool
) -> int:
    if not are_all or (len(base_paths), len(new_paths)) != (1, 1):
        raise UsageError("a doctor.json is compared with one other doctor.json, not with runs of jobs.bench")
    if options.markdown or options.spread is not None or options.metric != HEADLINE:
        raise UsageError("--markdown, --spread and --metric are for runs of jobs.bench, not for a doctor.json")
    base, new = (Examination.read(name, Path(path)) for name, path in (("BASE", base_paths[0]), ("NEW", new_paths[0])))
    printed, regressions = compared(base, new, fail_over=options.fail_over, colour=_has_colour())
    print(printed, end="", flush=True)
    return EXIT_CHECK_FAILED if regressions else EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.compare",
        usage="%(prog)s BASE NEW [options]\n       %(prog)s --base RUN [RUN ...] --new RUN [RUN ...] [options]",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="*", metavar="BASE NEW", help="a run each, or a folder of runs")
    parser.add_argument("--base", nargs="+", default=[], metavar="RUN", help="the runs to compare with")
    parser.add_argument("--new", nargs="+", default=[], metavar="RUN", help="the runs to judge")
    parser.add_argument("--metric", choices=TIMES, default=HEADLINE, help="which time (default: %(default)s)")
    parser.add_argument(
        "--fail-over",
        type=_share,
        metavar="3%",
        help="exit with 1 where a case is slower by more than this and by more than the noise, or where its check "
        "fails in NEW alone",
    )
    parser.add_argument(
        "--spread",
        type=_share,
        metavar="3%",
        help="standard deviation between runs to assume where a side has fewer than 3 runs (default: 3%% on GPUs, none "
        "on CPUs)",
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown, for a pull request")
    return parser


def _sides(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    if options.base and options.new and not options.runs:
        return options.base, options.new
    if len(options.runs) == 2 and not options.base and not options.new:
        return [options.runs[0]], [options.runs[1]]
    parser.error("name two runs, BASE and NEW, or several a side with --base RUN ... --new RUN ...")


def _share(value: str) -> float:
    """Parse a percentage: ``3%`` is 0.03."""
    try:
        percent = float(value.removesuffix("%")) if value.endswith("%") else -1.0
    except ValueError:
        percent = -1.0
    if not 0 <= percent < float("inf"):
        raise argparse.ArgumentTypeError(f"{value!r} must be a percentage of at least 0, such as 3%")
    return percent / 100


def _has_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


if __name__ == "__main__":
    sys.exit(main())
