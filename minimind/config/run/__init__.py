"""A run's settings: ``RunConfig``, and ``load_run_config``, which reads it from YAML, ``--set`` and options.

``values`` makes a YAML's short forms the settings' values, ``settings`` holds all settings with their types and
defaults, ``sources`` lays what the user gave over one another, and ``load`` puts it together.
"""

from minimind.config.run.load import load_run_config
from minimind.config.run.settings import RunConfig
from minimind.config.run.values import TRACKERS, steps_of

__all__ = ["TRACKERS", "RunConfig", "load_run_config", "steps_of"]
