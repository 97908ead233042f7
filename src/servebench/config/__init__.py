"""Turn command-line arguments into frozen settings; the only package that uses Hydra."""

from servebench.config.arguments import asks_hydra
from servebench.config.consistency import consistency_problems, with_derived_values
from servebench.config.information import print_hydra_information
from servebench.config.jobs import Job, compose_jobs
from servebench.config.launchers import launcher_from_dict
from servebench.config.validate import settings_from_dict

__all__ = [
    "Job",
    "asks_hydra",
    "compose_jobs",
    "consistency_problems",
    "launcher_from_dict",
    "print_hydra_information",
    "settings_from_dict",
    "with_derived_values",
]
