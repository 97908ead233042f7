"""Coverage-guided fuzzing of one target with atheris: `python tests/fuzz/run.py TARGET SECONDS` (`make fuzz` does all).

What it finds to be new is kept in a scratch folder; a fault stops it and is written to `tests/fuzz/corpus/TARGET/`, where
the default tests try it for ever after.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import atheris

HERE = Path(__file__).parent

with atheris.instrument_imports(
    include=["servebench.protocol", "servebench.measure", "servebench.telemetry", "servebench.util.secret_patterns"]
):
    spec = importlib.util.spec_from_file_location("fuzz_targets", HERE / "targets.py")
    targets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(targets)


def main() -> None:
    name, seconds = sys.argv[1], int(sys.argv[2])
    kept = HERE / "corpus" / name
    kept.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix=f"fuzz-{name}-")
    options = [
        f"-max_total_time={seconds}",
        "-max_len=2048",
        f"-artifact_prefix={kept}/",
        "-timeout=20",
        "-rss_limit_mb=2000",
    ]
    atheris.Setup([sys.argv[0], *options, scratch, str(kept)], targets.TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
