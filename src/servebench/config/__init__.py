"""Turn command-line arguments into frozen settings; the only package that uses Hydra."""

from servebench.config.composition import Job, compose_jobs
from servebench.config.launchers import launcher_from_dict
from servebench.config.validate import settings_from_dict

__all__ = ["Job", "compose_jobs", "launcher_from_dict", "settings_from_dict"]
