"""Settings as Hydra composes them from ``conf/`` and overrides."""

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from jobs.config import schema
from jobs.config.problem import config_dir
from jobs.config.rules import to_settings
from jobs.config.schema import Settings

schema.register()


def composed_config(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def composed(*overrides: str) -> Settings:
    return to_settings(composed_config(*overrides))
