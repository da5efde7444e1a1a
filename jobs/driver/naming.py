"""Names of a job: overrides, point of a multirun, submission, W&B run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from jobs.gang.submission import submission_id


@dataclasses.dataclass(frozen=True)
class Naming:
    """Names of a job, read once from Hydra and Ray."""

    overrides: tuple[str, ...]
    """The command line, as ``group=choice`` and ``option=value``."""
    point: str | None
    """Number of this job in a multirun; ``None`` outside one."""
    multirun: str | None
    """Name that all points of a multirun share; ``None`` outside one."""
    submission: str | None
    """Ray's id of a submitted job; ``None`` outside one."""
    env_set: str
    """Environment variables that Hydra sets for the job (``hydra.job.env_set``), as text."""

    @classmethod
    def of_job(cls) -> Naming:
        """Names of the job that runs in this process."""
        hydra = HydraConfig.get()
        point = None if OmegaConf.is_missing(hydra.job, "num") else str(hydra.job.num)
        multirun = None if point is None else Path(hydra.sweep.dir).name
        return cls(tuple(hydra.overrides.task), point, multirun, submission_id(), str(hydra.job.env_set))

    @property
    def group(self) -> str | None:
        """W&B group: the submission, or the multirun."""
        return self.submission or self.multirun

    @property
    def own_run_dir(self) -> str | None:
        """Name of the run directory if the config gives none; ``None``: it is named after the time."""
        return f"{self.submission}-{self.point}" if self.submission and self.point is not None else self.submission

    def below(self, run_dir: str | None) -> str | None:
        """Folder of this job in ``run_dir``: a numbered one for a point of a multirun, else ``run_dir`` itself."""
        return run_dir if run_dir is None or self.point is None else str(Path(run_dir) / self.point)

    def wandb_name(self, run_dir: Path) -> str:
        """Name of the W&B run: the run directory's name, or group and number for a point of a multirun."""
        return run_dir.name if self.point is None else f"{self.group}-{self.point}"
