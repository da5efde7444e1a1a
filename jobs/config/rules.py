"""From a composed config to settings: types, options and values are as they must be, or an error names the option."""

from __future__ import annotations

import dataclasses
from typing import get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cmkernel.config import CONFIG_TYPES
from jobs.config.schema import BASELINES, Fault, KernelSettings, Settings, World, kernel_config, kernel_config_name
from jobs.errors import UsageError

_POSITIVE = {
    "cluster": (
        "num_ranks",
        "outlier_z",
        "gpus_per_host",
        "connect_timeout_s",
        "placement_timeout_s",
        "setup_timeout_s",
        "step_timeout_s",
        "stall_timeout_s",
        "heartbeat_timeout_s",
        "link_gbytes_per_s",
        "nic_gbytes_per_s",
        "nics_per_host",
    ),
    "timing": ("bursts", "iterations", "chain_length", "chains", "chain_repeats", "profiled_calls", "soak_minutes"),
    "check": ("calls",),
    "wandb": ("init_timeout_s", "finish_timeout_s"),
    "tuning": ("max_candidates", "bursts", "chains"),
}


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
    _validate(settings)
    return settings


def _refuse_unknown(config: DictConfig, schema: type, prefix: str) -> None:
    """Hydra's ``+`` and ``++`` may add keys; here each option has a field, so an added key is a mistake."""
    fields = get_type_hints(schema)
    for key in map(str, config):
        option = f"{prefix}{key}"
        if key not in fields:
            raise UsageError(f"{option} is no option; {prefix.rstrip('.') or 'the config'} has {', '.join(fields)}")
        if dataclasses.is_dataclass(fields[key]):
            _refuse_unknown(config[key], fields[key], f"{option}.")


def _validate(settings: Settings) -> None:
    for group, names in _POSITIVE.items():
        for name in names:
            value = getattr(getattr(settings, group), name)
            if value is not None and value <= 0:
                raise UsageError(f"{group}.{name}={value} must be greater than 0")
    if settings.timing.warmup < 1:
        raise UsageError(f"timing.warmup={settings.timing.warmup} must be at least 1: the first call compiles")
    if (after := settings.check.fault_after) is not None and (
        after < 0 or settings.check.fault is Fault.none or settings.timing.soak_minutes is None
    ):
        raise UsageError(
            f"check.fault_after={after} must be at least 0, and needs check.fault and timing.soak_minutes: it is the "
            "iteration of the soak from which on the fault is there"
        )
    if settings.cluster.world is World.per_island and settings.cluster.gpus_per_host is not None:
        raise UsageError(
            f"cluster.gpus_per_host={settings.cluster.gpus_per_host} has no meaning with cluster.world=per_island: "
            "cluster.num_ranks is the size of an island"
        )
    if settings.cluster.max_restarts < 0:
        raise UsageError(f"cluster.max_restarts={settings.cluster.max_restarts} must be at least 0")
    if not 0 < settings.cluster.gpu_memory_fraction <= 1:
        raise UsageError(f"cluster.gpu_memory_fraction={settings.cluster.gpu_memory_fraction} must be in (0, 1]")
    for name in settings.timing.baselines:
        if name not in BASELINES:
            raise UsageError(
                f"timing.baselines={settings.timing.baselines}: {name!r} is none of {', '.join(BASELINES)}"
            )
    tuning = settings.tuning
    for name, of in (("max_modelled", "heuristic's modelled"), ("early_stop", "fastest")):
        if not (value := getattr(tuning, name)) >= 1:
            raise UsageError(f"tuning.{name}={value} must be at least 1: it is a multiple of the {of} time")
    if tuning.round_size < 2:
        raise UsageError(f"tuning.round_size={tuning.round_size} must be at least 2: the heuristic and another one")
    if not 0 <= tuning.min_gain < 1:
        raise UsageError(f"tuning.min_gain={tuning.min_gain} must be in [0, 1)")
    _validate_kernel(settings.kernel)


def _validate_kernel(kernel: KernelSettings) -> None:
    options, implementation = kernel_config(kernel), kernel.implementation.value
    config_type = CONFIG_TYPES.get(kernel_config_name(kernel.implementation))
    known = {field.name for field in dataclasses.fields(config_type)} if config_type else set()
    for option in options:
        if option not in known:
            what = "has no such option" if config_type else "takes no config"
            raise UsageError(f"kernel.{option} is set, but kernel.implementation={implementation} {what}")
    if config_type is None:
        return
    try:
        config_type(**options)
    except ValueError as error:
        raise UsageError(f"kernel.{error}") from error
