"""What CI asks of security: known vulnerabilities in what is installed, secrets in what is committed, risky calls in the code.

    python .ci/audit.py [--offline]     in the environment that has servebench and its `audit` and `dev` extras

A secret fails, and so does a vulnerability of a package that servebench itself asks for and that a release mends. Those of
packages further down are reported. An audit that could not look fails too: where no advisory can be fetched (no network, or a
mirror without them), only `--offline` lets the other checks decide alone. Digests of files and commits are no secrets: the
baseline says so. Risky calls are Bandit's rules as ruff has them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BASELINE = ".secrets.baseline"
TIMEOUT_S = 1200
LINES_MOVED = 3
"""How the scan ends when all it found is known, on other lines than before: it writes the new ones into the baseline."""


def direct_names(projects: Sequence[Mapping[str, Any]]) -> set[str]:
    """The packages that these pyproject files ask for, extras too, by their normalised names."""
    asked: list[str] = []
    for project in projects:
        table = project["project"]
        asked += table.get("dependencies", [])
        for extra in table.get("optional-dependencies", {}).values():
            asked += extra
    return {normalised(re.split(r"[\s\[<>=!~;]", one, maxsplit=1)[0]) for one in asked}


def normalised(name: str) -> str:
    """A package's name as PyPI compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def judged(report: Mapping[str, Any] | None, direct: set[str]) -> tuple[list[str], bool]:
    """What to say of pip-audit's report (null: there is none), and whether it fails."""
    packages = list((report or {}).get("dependencies", []))
    looked_up = [one for one in packages if "vulns" in one]
    if not looked_up:
        return [
            "advisories: could not look: none can be fetched from here (no network, or a mirror without them)"
        ], True
    lines, failed = [], False
    for one in looked_up:
        own = normalised(one["name"]) in direct
        for vulnerability in one["vulns"]:
            mended = ", ".join(vulnerability.get("fix_versions", []))
            failed = failed or (own and bool(mended))
            whose = "asked for by servebench" if own else "further down"
            lines.append(
                f"{one['name']} {one['version']} ({whose}): {vulnerability['id']}, mended in {mended or 'nothing yet'}"
            )
    lines.append(
        f"advisories: {len(looked_up)} of {len(packages)} packages looked up, {len(lines)} known vulnerabilities"
    )
    return lines, failed


def advisories() -> dict[str, Any] | None:
    """pip-audit's report on this environment; null when it has none."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--skip-editable",
        "--progress-spinner=off",
        "--format=json",
        "--timeout=5",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        report = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return report if isinstance(report, dict) else None


def secrets(root: Path) -> tuple[list[str], bool]:
    """Secrets in committed files that the baseline does not know, and whether there are any."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and name != BASELINE and (root / name).is_file()]
    command = [sys.executable, "-m", "detect_secrets.pre_commit_hook", "--baseline", BASELINE, *names]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return [f"secrets: could not look: the scan took longer than {TIMEOUT_S} s"], True
    failed = done.returncode not in (0, LINES_MOVED)
    found = re.findall(r"Secret Type: (.*)\nLocation: +(.*)", done.stdout)
    lines = [f"{where}: {kind}" for kind, where in found]
    if failed and not lines:
        lines = [f"the scan failed: {(done.stderr or done.stdout).strip()[-300:]}"]
    if lines:
        lines.append(
            f"what is none: mark its line '# pragma: allowlist secret', or detect-secrets scan --baseline {BASELINE}"
        )
    lines.append(f"secrets: {len(names)} files scanned, {len(found)} found that {BASELINE} does not know")
    return lines, failed or bool(found)


def risky_calls(root: Path) -> tuple[list[str], bool]:
    """What Bandit's rules (ruff's `S`) find in the code, and whether it is anything; a scan that cannot run fails."""
    folders = ["src", ".ci", *(str(path.relative_to(root)) for path in root.glob("plugins/*/src"))]
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    # a selection on the command line overrides what the project has decided to ignore
    ignored = ",".join(rule for rule in lint["ignore"] if re.fullmatch(r"S\d+", rule))
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--select=S",
        f"--ignore={ignored}",
        "--no-cache",
        "--output-format=concise",
        *folders,
    ]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode not in (0, 1):
        return [f"risky calls: could not look: {(done.stderr or done.stdout).strip()[-300:]}"], True
    lines = [line for line in done.stdout.splitlines() if re.search(r":\d+:\d+: S\d+", line)]
    return [*lines, f"risky calls: {len(lines)} found"], done.returncode != 0


def main(words: Sequence[str]) -> int:
    """Look for all three; 1 when one fails."""
    paths = [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]
    direct = direct_names([tomllib.loads(path.read_text(encoding="utf-8")) for path in paths])
    leaked, has_secrets = secrets(ROOT)
    risks, risky = risky_calls(ROOT)
    report = advisories()
    known, vulnerable = judged(report, direct)
    missing = not any("vulns" in one for one in (report or {}).get("dependencies", []))
    sys.stdout.write("\n".join([*leaked, *risks, *known]) + "\n")
    return int(has_secrets or risky or (vulnerable and not (missing and "--offline" in words)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
