"""The hooks of this plugin: its engine, and the folder of its config group."""

from servebench.plugin import engine_hooks
from servebench_transformers.engine import TransformersEngine

requires_api = 1
servebench_engines, servebench_config_paths = engine_hooks(TransformersEngine)
