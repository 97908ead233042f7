"""What the audit makes of reports, and that its scan finds a secret."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
audit = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(audit)

FIXED = {"id": "PYSEC-1", "fix_versions": ["2.0"]}
OPEN = {"id": "PYSEC-2", "fix_versions": []}
SKIPPED = {"name": "a", "skip_reason": "Dependency not found on PyPI and could not be audited: a (1)"}


def package(name, *vulnerabilities):
    return {"name": name, "version": "1.0", "vulns": list(vulnerabilities)}


@pytest.mark.parametrize(
    ("report", "failed", "told"),
    [
        (None, True, "advisories: could not look"),
        ({"dependencies": [SKIPPED]}, True, "advisories: could not look"),
        ({"dependencies": [SKIPPED, package("a")]}, False, "1 of 2 packages looked up, 0 known"),
        ({"dependencies": [package("A_b", FIXED)]}, True, "A_b 1.0 (asked for by servebench): PYSEC-1, mended in 2.0"),
        ({"dependencies": [package("A_b", OPEN)]}, False, "PYSEC-2, mended in nothing yet"),
        ({"dependencies": [package("deep", FIXED)]}, False, "deep 1.0 (further down): PYSEC-1, mended in 2.0"),
    ],
)
def test_a_vulnerability_fails_where_servebench_can_mend_it(report, failed, told):
    lines, fails = audit.judged(report, {"a-b"})
    assert fails == failed
    assert told in "\n".join(lines)


@pytest.mark.parametrize(
    ("report", "words", "status"),
    [(None, [], 1), (None, ["--offline"], 0), ({"dependencies": [package("ray", FIXED)]}, ["--offline"], 1)],
)
def test_an_audit_that_could_not_look_fails(monkeypatch, capsys, report, words, status):
    monkeypatch.setattr(audit, "advisories", lambda: report)
    monkeypatch.setattr(audit, "secrets", lambda root: ([], False))
    monkeypatch.setattr(audit, "risky_calls", lambda root: ([], False))
    assert audit.main(words) == status
    assert ("could not look" in capsys.readouterr().out) == (report is None)


@pytest.mark.parametrize(
    ("code", "found"),
    [("import pickle\npickle.loads(b'')\n", "S301"), ("import os\nos.system(input())\n", "S605"), ("x = 1\n", None)],
)
def test_a_risky_call_fails(tmp_path, code, found):
    (tmp_path / "src").mkdir()
    (tmp_path / ".ci").mkdir()
    (tmp_path / "src" / "one.py").write_text(code)
    lines, failed = audit.risky_calls(tmp_path)
    assert failed == (found is not None)
    assert found is None or found in lines[0]


def test_direct_packages_are_those_that_pyproject_names():
    project = {
        "project": {"dependencies": ["Foo_Bar>=1,<2"], "optional-dependencies": {"x": ["baz[all]~=1", "qux; os=='a'"]}}
    }
    assert audit.direct_names([project]) == {"foo-bar", "baz", "qux"}


@pytest.mark.slow
def test_a_secret_is_found_and_one_that_the_baseline_knows_is_not(tmp_path):
    pytest.importorskip("detect_secrets", reason="the audit's extra is not installed")
    shutil.copy(ROOT / audit.BASELINE, tmp_path)
    (tmp_path / "fine.py").write_text("x = 1\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "fine.py"], cwd=tmp_path, check=True)
    assert audit.secrets(tmp_path) == (
        ["secrets: 1 files scanned, 0 found that .secrets.baseline does not know"],
        False,
    )
    # made here, so that the scan of this repository does not find it
    (tmp_path / "leak.py").write_text("key = '" + "AKIA" + "IOSFODNN7" + "QXSMPLA'\n")
    subprocess.run(["git", "add", "leak.py"], cwd=tmp_path, check=True)
    lines, failed = audit.secrets(tmp_path)
    assert failed
    assert lines[0] == "leak.py:1: AWS Access Key"


@pytest.mark.slow
def test_a_known_secret_that_moves_to_another_line_fails_nothing(tmp_path):
    pytest.importorskip("detect_secrets", reason="the audit's extra is not installed")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    leak, baseline = tmp_path / "leak.py", tmp_path / audit.BASELINE
    leak.write_text("key = '" + "AKIA" + "IOSFODNN7" + "QXSMPLA'\n")
    subprocess.run(["git", "add", "leak.py"], cwd=tmp_path, check=True)
    scan = [sys.executable, "-m", "detect_secrets", "scan", "leak.py"]
    baseline.write_text(subprocess.run(scan, cwd=tmp_path, check=True, capture_output=True, text=True).stdout)
    leak.write_text("\n\n" + leak.read_text())
    assert audit.secrets(tmp_path) == (
        ["secrets: 1 files scanned, 0 found that .secrets.baseline does not know"],
        False,
    )


def test_this_code_has_no_risky_calls_beside_those_that_the_project_allows():
    assert audit.risky_calls(ROOT) == (["risky calls: 0 found"], False)


def test_a_scan_for_secrets_that_takes_too_long_has_not_looked(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(audit, "TIMEOUT_S", 0)
    lines, failed = audit.secrets(tmp_path)
    assert failed
    assert "could not look" in lines[0]
