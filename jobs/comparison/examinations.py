"""Two examinations by ``jobs.doctor``: links that became slower, verdicts that changed, hosts and GPUs that differ."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from jobs.comparison.table import rendered
from jobs.errors import UsageError
from jobs.health.facts import EXAMINATION_NAME
from jobs.health.finding import Verdict
from jobs.results.disk.journal import JOURNAL_NAME

_ORDER = [verdict.value for verdict in Verdict]


@dataclasses.dataclass(frozen=True)
class Examination:
    """One ``doctor.json``."""

    path: Path
    parts: frozenset[str]
    """Hosts, and GPUs by UUID."""
    links: dict[str, float | None]
    """Bytes per second by both ends; ``None`` for a broken link."""
    verdicts: dict[str, str]
    """Worst verdict by check and place."""

    @classmethod
    def read(cls, name: str, path: Path) -> Examination:
        """Read a file, or that of a run directory; error messages call it ``name``.

        Raises:
          UsageError: it can't be read, or isn't the doctor's.
        """
        file = path / EXAMINATION_NAME if path.is_dir() else path
        try:
            data = json.loads(file.read_text())
            gpus = [f"GPU {gpu['uuid']} of {host['host']}" for host in data["hosts"] for gpu in host["gpus"]]
            parts = frozenset([*(f"host {host['host']}" for host in data["hosts"]), *gpus])
            links = {link["link"]: None if link["error"] else link["bytes_per_s"] for link in data["links"]}
            return cls(file, parts, links, _verdicts(data["findings"]))
        except OSError as error:
            raise UsageError(f"{name}={file}: can't be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{name}={file}: no {EXAMINATION_NAME} of jobs.doctor ({error!r})") from error


def is_examination(path: Path) -> bool:
    """Return whether the path names an examination, not a run."""
    if path.is_dir():
        return (path / EXAMINATION_NAME).exists() and not (path / JOURNAL_NAME).exists()
    return path.suffix == ".json"


def compared(base: Examination, new: Examination, *, fail_over: float | None, colour: bool) -> tuple[str, list[str]]:
    """The comparison as text, and its regressions.

    Regressions, looked for with ``fail_over`` alone: a link that lost more than this share of its bandwidth or broke, a
    verdict that became worse, a new warning or failure, a host, a GPU or a link that is gone.
    """
    losses, regressions = [], []
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("link", "BASE (GB/s)", "NEW (GB/s)", "change"):
        table.add_column(title, justify="left" if title == "link" else "right", no_wrap=True)
    both = [name for name in base.links if name in new.links]
    for name in both:
        before, after = base.links[name], new.links[name]
        change = after / before - 1 if before and after is not None else None
        table.add_row(name, _speed(before), _speed(after), "" if change is None else f"{100 * change:+.1f} %")
        if fail_over is not None and before and (after is None or after / before - 1 < -fail_over):
            regressions.append(f"{name}: {_speed(before)} GB/s became {_speed(after)}")
    losses += [f"{part} is gone" for part in sorted(base.parts - new.parts)]
    losses += [f"link {name} is gone" for name in base.links if name not in new.links]
    for place, is_now in new.verdicts.items():
        # A place that BASE doesn't have counts as one without a warning.
        was = base.verdicts.get(place, Verdict.unknown.value)
        if _ORDER.index(is_now) > max(_ORDER.index(was), _ORDER.index(Verdict.unknown.value)):
            losses.append(f"{place}: {was} became {is_now}")
    changes = [f"{part} is new" for part in sorted(new.parts - base.parts)]
    changes += [f"link {name} is new" for name in new.links if name not in base.links]
    lines = [f"# BASE: {base.path}", f"# NEW: {new.path}", *(f"# {change}" for change in changes)]
    if fail_over is None:
        lines += [f"# {loss}" for loss in losses]
    else:
        regressions += losses
    text = "".join(f"{line}\n" for line in lines) + (f"#\n{rendered(table, colour=colour)}#\n" if both else "")
    text += f"# {len(both)} links compared\n"
    return text + "".join(f"# REGRESSION: {one}\n" for one in regressions), regressions


def _verdicts(findings: Sequence[dict[str, Any]]) -> dict[str, str]:
    worst: dict[str, str] = {}
    for finding in findings:
        # A host that fails has its address behind its name.
        place = f"{finding['check']} on {finding['where'].partition(' (')[0]}"
        worst[place] = max(worst.get(place, _ORDER[0]), finding["verdict"], key=_ORDER.index)
    return worst


def _speed(bytes_per_s: float | None) -> str:
    return "broken" if bytes_per_s is None else f"{bytes_per_s / 1e9:.3g}"
