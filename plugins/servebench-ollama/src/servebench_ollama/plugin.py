"""The hooks of this plugin: its engine, and the folder of its config group."""

from servebench.plugin import engine_hooks
from servebench_ollama.engine import OllamaEngine

requires_api = 1
servebench_engines, servebench_config_paths = engine_hooks(OllamaEngine)
