"""From the words of the command line to frozen settings: the only room that knows Hydra."""

from servebench.config.combine import combination_faults, normalised
from servebench.config.information import hydra_information
from servebench.config.jobs import Job, compose_jobs
from servebench.config.launchers import launcher_from_dict
from servebench.config.validate import settings_from_dict
from servebench.config.words import hydra_words

__all__ = [
    "Job",
    "combination_faults",
    "compose_jobs",
    "hydra_information",
    "hydra_words",
    "launcher_from_dict",
    "normalised",
    "settings_from_dict",
]
