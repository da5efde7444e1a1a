"""``python -m jobs.report RUN_DIR``: pictures and report.html of a finished job, or of several on the same devices."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from jobs.errors import EXIT_INFRASTRUCTURE, EXIT_OK, JobError
from jobs.output import keep_output


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what the command line asks for, and print where; the exit code."""
    options = _parser().parse_args(arguments)
    keep_output()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        return _report(options.run_dirs, options.out or options.run_dirs[0])
    except JobError as error:
        print(f"{error.status}: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:
        # Python would exit with 1, which means that a check failed.
        print(f"bug: {type(error).__name__}: {error} (traceback: {_traceback_path()})", file=sys.stderr)
        return EXIT_INFRASTRUCTURE


def _report(run_dirs: Sequence[Path], folder: Path) -> int:
    # Late: matplotlib and jax take seconds to import.
    from jobs.results.disk.recorded_run import read_runs
    from jobs.results.report import write_report

    report = write_report(read_runs(run_dirs), folder)
    for picture in report.drawn.pictures:
        print(f"# Picture : {picture.png}, {picture.svg.name}")
    print(f"# Report  : {report.page}")
    # The traceback of a picture that could not be drawn has been logged.
    return EXIT_INFRASTRUCTURE if report.drawn.failures else EXIT_OK


def _traceback_path() -> str:
    """A new file with the traceback of the current exception; where there is no room for it, it is printed instead."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="cmkernel-report-", suffix=".txt", delete=False) as file:
            traceback.print_exc(file=file)
        return file.name
    except OSError:
        traceback.print_exc()
        return "above"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jobs.report", description=__doc__)
    parser.add_argument(
        "run_dirs",
        metavar="RUN_DIR",
        nargs="+",
        type=Path,
        help="run directory of a job, or a folder of run directories, as a multirun with run_dir= makes it",
    )
    parser.add_argument("--out", type=Path, help="where pictures/ and report.html go; default: the first RUN_DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
