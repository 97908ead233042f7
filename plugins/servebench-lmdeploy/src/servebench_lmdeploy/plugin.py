"""The hooks of this plugin: its engine, and the folder of its config group."""

from servebench.plugin import engine_hooks
from servebench_lmdeploy.engine import LmdeployEngine

requires_api = 1
servebench_engines, servebench_config_paths = engine_hooks(LmdeployEngine)
