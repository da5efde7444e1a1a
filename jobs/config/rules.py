"""Rules of a composed config: settings that exist are valid, and an error names the option that isn't."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cmkernel.config import config_type
from jobs.config.choices import Fault, World
from jobs.config.implementations import IMPLEMENTATIONS, refusal
from jobs.config.options import leaves, refuse_value, renamed_option, with_new_names
from jobs.config.problem import ops_of
from jobs.config.schema import CheckSettings, ClusterSettings, KernelSettings, Settings, TimingSettings
from jobs.errors import UsageError
from jobs.records.op import Op


def to_settings(config: DictConfig) -> Settings:
    """Typed settings from a composed config.

    Raises:
      UsageError: a value has the wrong type, an option is unknown, or a value breaks its rule.
    """
    try:
        _refuse_unknown(config, Settings, "")
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Settings), config))
    except OmegaConfBaseException as error:
        raise UsageError(str(error).strip().replace("\n", " ")) from error
    assert isinstance(settings, Settings)
    for name, field, value in leaves(settings):
        refuse_value(name, field, value)
    _refuse_cluster(settings.cluster)
    _refuse_fault(settings.check, settings.timing)
    _refuse_baselines(settings.timing)
    _refuse_kernel(settings.kernel, ops_of(settings.problem))
    return settings


def recorded_settings(path: Path) -> Settings:
    """Settings in the ``config.yaml`` of an earlier job, with the present names of renamed options.

    Raises:
      UsageError: the file can't be read, or this version refuses its options.
    """
    try:
        return to_settings(with_new_names(cast(DictConfig, OmegaConf.create(path.read_text()))))
    except (OSError, ValueError, UsageError) as error:
        raise UsageError(f"{path}: {error}") from error


def _refuse_unknown(config: DictConfig, schema: type, prefix: str) -> None:
    """Refuse keys without a field in the schema, which Hydra's ``+`` and ``++`` can add."""
    fields = get_type_hints(schema)
    for key in map(str, config):
        option = f"{prefix}{key}"
        if message := renamed_option(option):
            raise UsageError(message)
        if key not in fields:
            raise UsageError(f"{option} is no option; {prefix.rstrip('.') or 'the config'} has {', '.join(fields)}")
        if dataclasses.is_dataclass(fields[key]):
            _refuse_unknown(config[key], fields[key], f"{option}.")


def _refuse_cluster(cluster: ClusterSettings) -> None:
    if cluster.world is World.per_island and cluster.gpus_per_host is not None:
        raise UsageError(
            f"cluster.gpus_per_host={cluster.gpus_per_host} has no meaning with cluster.world=per_island: "
            "cluster.num_ranks is the size of an island"
        )


def _refuse_fault(check: CheckSettings, timing: TimingSettings) -> None:
    if check.fault_after is not None and (check.fault is Fault.none or timing.soak_minutes is None):
        raise UsageError(
            f"check.fault_after={check.fault_after} needs check.fault and timing.soak_minutes: it is the iteration of "
            "the soak at which the fault begins"
        )


def _refuse_baselines(timing: TimingSettings) -> None:
    for name in timing.baselines:
        if name not in IMPLEMENTATIONS:
            raise UsageError(f"timing.baselines={timing.baselines}: {name!r} is none of {', '.join(IMPLEMENTATIONS)}")


def _refuse_kernel(kernel: KernelSettings, ops: Sequence[Op]) -> None:
    for op in ops:
        if (reason := refusal(kernel.implementation.value, op)) is not None:
            raise UsageError(f"kernel.implementation={reason}; problem.op={op} needs another one")
        if op.is_layer and kernel.config:
            raise UsageError(
                f"kernel.{min(kernel.config)} is set, but problem.op={op} has two kernels: leave it out, or name a "
                "table of tuned configs (kernel.table)"
            )
        if not op.is_layer:
            _refuse_config(kernel, op)


def _refuse_config(kernel: KernelSettings, op: Op) -> None:
    its_type = config_type(kernel.config_name, op.function)
    known = {field.name for field in dataclasses.fields(its_type)} if its_type else set()
    for option in kernel.config:
        if option not in known:
            reason = "has no such option" if its_type else "takes no config"
            where = "" if op is Op.all_gather_matmul else f" with problem.op={op}"
            raise UsageError(
                f"kernel.{option} is set, but kernel.implementation={kernel.implementation.value}{where} {reason}"
            )
    if its_type is None:
        return
    try:
        its_type(**kernel.config)
    except ValueError as error:
        raise UsageError(f"kernel.{error}") from error
