"""One seal over a study: what is changed in any of its files is noticed, or makes servebench do nothing that was not asked."""

import gzip
import json
import os
import random
import re
import shutil
import sys
import zlib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from servebench.registry.registry import registry
from servebench.store.layout import StudyFolder
from servebench.study.trust import confirm_study
from servebench.util.errors import ConfigError, ServebenchError
from servebench.util.plain_data import leaves
from support.acts import SENDS, STARTS, recorded
from support.commands import run_servebench
from support.stored_kinds import BUILDERS, STUDIES, copied

WORD = "kanary"
"""In every value that a change puts in: whatever is done with it shows it."""
NAME, SECRET = f"{WORD.upper()}_KEY", "kq7-not-for-strangers"
SIGNED = ("study.json", "plan.json", "tune.json")
RUN = re.compile(r"\d\d_.*")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One study of each kind, and the cache of who made them."""
    folder = tmp_path_factory.mktemp("kinds")
    patch = pytest.MonkeyPatch()
    patch.setenv("SERVEBENCH_CACHE", str(folder / "cache"))
    for kind, build in BUILDERS.items():
        build(folder / "made", kind)
    yield folder
    patch.undo()


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    """The user who made them, without a terminal, with a secret and with something to be found at every canary."""
    monkeypatch.setenv("SERVEBENCH_CACHE", str(made / "cache"))
    monkeypatch.setenv(NAME, SECRET)
    monkeypatch.setenv("SHOWN_NAME", "shown-value")
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115,PTH123 - for the test's whole time
    (tmp_path / "outputs").mkdir()
    trap = tmp_path / WORD
    trap.mkdir()
    (trap / "program").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (trap / "program").chmod(0o755)
    (trap / "space.yaml").write_text("parameters: {}\n")
    yield tmp_path
    sys.stdin.close()


def canaries(home):
    return [f"{home}/{WORD}/program", f"../{WORD}/program", f"./{WORD}/program", f"{home}/{WORD}", f"http://127.0.0.1:9/{WORD}",
            f"http://{WORD}.invalid/v1", NAME, f"{home}/{WORD}/space.yaml", f"sqlite:///{home}/{WORD}/mlflow.db",
            f"{home}/{WORD}/new"]  # fmt: skip


def places(document):
    """Yield each value of a document: what holds it, and under which key."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in list(items):
        yield document, key, value
        yield from places(value)


def other_value(value, chance, home):
    """Return another value of the kind, or of another."""
    strange = chance.choice([*canaries(home), None, True, -1, 10**9, [], {}, [chance.choice(canaries(home))]])
    if isinstance(value, bool):
        return chance.choice([not value, strange])
    if isinstance(value, (int, float)):
        return chance.choice([value + 1, value * 1000 + 1, 0, -1, strange])
    if isinstance(value, list):
        return [*value, chance.choice(canaries(home))]
    if isinstance(value, dict):
        return {**value, chance.choice([NAME, "executable", "path", "args", "setup"]): chance.choice(canaries(home))}
    return chance.choice(canaries(home))


def change_field(path, chance, home, within=None):
    """Change, remove or add one field of a JSON file, and return what was done."""
    document = json.loads(path.read_text())
    inner = document if within is None else document[within]
    holder, key, value = chance.choice([one for one in places(inner) if one[1] != "seal"])
    if isinstance(holder, dict) and chance.random() < 0.1:
        del holder[key]
    else:
        while json.dumps(holder[key]) == json.dumps(value):
            holder[key] = other_value(value, chance, home)
    path.write_text(json.dumps(document))
    return f"{path.name}: {key} = {value!r} -> {holder.get(key) if isinstance(holder, dict) else holder[key]!r}"


def without_seals(study):
    for path in study.rglob("*.json"):
        document = json.loads(path.read_text())
        document.pop("seal", None)
        path.write_text(json.dumps(document))


ACTING = (
    ("resume", "s"),
    ("resume", "s", "--failed", "--here"),
    ("tune", "--continue", "s"),
    ("work", "s", "RUN"),
    ("sync", "s"),
)
READING = (("ls",), ("show", "s"), ("show", "s", "--json"), ("report", "s", "--out", "page.html"), ("compare", "s"),
           ("export", "s", "--format", "csv"), ("recover", "s"), ("recommend", "s"))  # fmt: skip


def first_run(study):
    return next(path.name for path in sorted(study.iterdir()) if RUN.fullmatch(path.name))


def commands(study, chance):
    """Return what is tried with a changed study: all that may act, and some that only look."""
    run = next((path.name for path in sorted(study.iterdir()) if RUN.fullmatch(path.name)), "00_vllm_stock")
    acting = [tuple(run if word == "RUN" else word for word in words) for words in ACTING]
    manifest = study / run / "manifest.json"
    locked = [("run", "--lock", str(manifest))] if manifest.exists() else []
    return [*acting, *chance.sample(READING, 2)], locked


def harmless(run_main, words, study, home, what):
    """Run a command; nothing is done with a canary, and nothing of the secret is told. Returns its exit code."""
    with recorded() as acts:
        done = run_main(*words)
    said = f"{what}\n{words}: {done.returncode}\n{done.stderr[-2000:]}"
    assert acts.naming(WORD, inside=study) == [], said
    assert not (home / "ran").exists(), said
    assert "Traceback" not in done.stderr, said
    assert SECRET not in done.stdout + done.stderr, said
    return done.returncode, acts, said


def tried(run_main, study, home, chance, what, *, noticed, locked_changed=False):
    """Try all commands on a changed study."""
    tries, locked = commands(study, chance)
    for words in [*tries, *(locked if locked_changed else [])]:
        code, acts, said = harmless(run_main, words, study, home, what)
        acting = words[0] in ("resume", "work", "run") or words[:2] == ("tune", "--continue")
        if acting and noticed:
            assert code != 0, said
            assert acts.of(*STARTS, *SENDS) == [], said


def changed_at_random(run_main, made, home, seed):
    chance = random.Random(f"sealed studies/{seed}")
    kind = chance.choice(list(BUILDERS))
    study = copied(made / "made" / kind, home / "outputs")
    own = chance.random() < 0.6
    if not own:
        without_seals(study)
    files = [path for name in SIGNED if (path := study / name).exists()]
    files += [*files[-1:], *study.glob("*/manifest.json")]
    path = chance.choice(files)
    manifest = path.name == "manifest.json"
    what = f"seed {seed}, {kind}, {'own' if own else 'unsigned'}, " + change_field(
        path, chance, home, "config" if manifest else None
    )
    tried(run_main, study, home, chance, what, noticed=True, locked_changed=manifest or not own)


@pytest.mark.parametrize("seed", range(16))
def test_a_field_that_is_changed_does_nothing_unasked(run_main, made, home, seed):
    changed_at_random(run_main, made, home, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16, 76))
def test_many_fields_that_are_changed_do_nothing_unasked(run_main, made, home, seed):
    changed_at_random(run_main, made, home, seed)


def put(path, keys, value):
    """Set the value at a place of a JSON file."""
    document = json.loads(path.read_text())
    holder = document
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = value
    path.write_text(json.dumps(document))


def tune_places(home):
    """What each field of `tune.json` could make servebench do, by what it would be."""
    program = f"{home}/{WORD}/program"
    candidate = {"run": "09_vllm_x", "name": "x", "engine": "vllm", "origin": "limit"}
    return {
        "a program": (("candidates", 1, "settings"), {"launch.name": "process", "engine.executable": program}),
        "a launcher": (("candidates", -1, "settings", "launch.name"), f"{WORD}-process"),
        "a variable": (("candidates", -1, "settings", f"engine.env.{NAME}"), "[redacted]"),
        "a program of a new candidate": (
            ("candidates", -1),
            {**candidate, "settings": {"engine.executable": program}},
        ),
        "a folder": (("question", "out"), f"{home}/{WORD}/new"),
        "a judge": (("quality", "judge", "base_url"), f"http://{WORD}.invalid/v1"),
        "a judge's key": (("quality", "judge", "api_key_env"), NAME),
        "questions": (("quality", "path"), f"{home}/{WORD}/space.yaml"),
        "a space": (("spaces", 0), f"{home}/{WORD}/space.yaml"),
    }


TUNE_PLACES = tuple(tune_places(Path()))


@pytest.mark.parametrize("own", [True, False], ids=["own", "unsigned"])
@pytest.mark.parametrize("place", TUNE_PLACES)
def test_tune_json_makes_nothing_act_and_the_question_names_it(run_main, made, home, place, own, capfd):
    study = copied(made / "made" / "tune", home / "outputs")
    if not own:
        without_seals(study)
    put(study / "tune.json", *tune_places(home)[place])
    for words in (("tune", "--continue", "s"), ("tune", "--continue", "s", "tune.trials=9"), ("resume", "s")):
        code, acts, said = harmless(run_main, words, study, home, place)
        assert code == 2, said
        assert acts.of(*STARTS, *SENDS) == []
    for words in (("show", "s"), ("show", "s", "--json"), ("report", "s", "--out", "page.html"), ("recover", "s")):
        harmless(run_main, words, study, home, place)
    capfd.readouterr()
    try:
        confirm_study(StudyFolder(study), registry(), trusted=True, adopt=False)
    except ConfigError as error:  # a launcher that does not exist cannot act
        assert WORD in str(error)  # noqa: PT017 - the others are no errors
    else:
        shown = capfd.readouterr().err
        assert WORD in shown.lower()
        assert place != "a variable" or re.search(f"takes your variables: .*{NAME}", shown)


NOT_NAMED = ("study_id", "words", "status", "servebench_version", "ticket", "host", "process", "overrides",
             "schema_version", "name",
             "engine", "origin", "note", "take_back_of", "key", "why", "run", "runs", "objective")  # fmt: skip
"""Keys of texts that name no program, variable, address or folder: names, and what the user is told."""


@pytest.mark.parametrize("kind", BUILDERS)
def test_the_question_names_every_text_of_all_files(made, home, kind, capfd):
    """Each is made a canary in its turn. A config that is not valid then cannot act."""
    study = copied(made / "made" / kind, home / "outputs")
    without_seals(study)
    for name in SIGNED:
        whole = json.loads((study / name).read_text()) if (study / name).exists() else {}
        for path, value in leaves(whole):
            keys = [int(part) if part.isdigit() else part for part in path.split(".")]
            if (
                not isinstance(value, str)
                or keys[-1] in NOT_NAMED
                or "refused" in keys
                or "words" in keys
                or "overrides" in keys
            ):
                continue
            try:
                put(study / name, keys, f"/{WORD}/x")
            except KeyError:  # a key with a dot in it
                continue
            capfd.readouterr()
            try:
                confirm_study(StudyFolder(study), registry(), trusted=True, adopt=False)
            except ServebenchError:
                pass
            else:
                assert WORD in capfd.readouterr().err, (name, path)
            (study / name).write_text(json.dumps(whole))


REPLAYED = {
    "tune.json of another tune": ("tune", "tune", ["tune.json"]),
    "study.json of another study": ("simulated", "process", ["study.json"]),
    "plan.json of another study": ("simulated", "process", ["plan.json"]),
    "a tune.json where there is none": ("simulated", "tune", ["tune.json"]),
    "study.json and plan.json of another tune": ("tune", "tune", ["study.json", "plan.json"]),
    "no tune.json": ("tune", None, ["tune.json"]),
    "a manifest of a decided study": ("simulated", "decided", ["00_vllm_unique/manifest.json"]),
}


@pytest.mark.parametrize(("kind", "other", "files"), REPLAYED.values(), ids=REPLAYED)
def test_a_signature_is_for_one_study(run_main, made, home, kind, other, files):
    study = copied(made / "made" / kind, home / "outputs")
    for name in files:
        if other is None:
            (study / name).unlink()
            continue
        source = made / "made" / other
        if other == kind:
            source = home / "other" / "outputs" / "again"
            if not source.exists():
                BUILDERS[kind](source.parent, source.name)
        shutil.copy(source / name, study / name)
    for words in (("resume", "s"), ("tune", "--continue", "s"), ("work", "s", "00_vllm_unique")):
        code, acts, said = harmless(run_main, words, study, home, files)
        assert code != 0, said
        assert acts.of(*STARTS, *SENDS) == []


def test_a_study_that_is_trusted_is_asked_once_and_all_of_it_is_signed_then(made, home, capfd):
    study = copied(made / "made" / "tune", home / "outputs")
    without_seals(study)
    confirm_study(StudyFolder(study), registry(), trusted=True, adopt=True)
    assert "It would do this" in capfd.readouterr().err
    confirm_study(StudyFolder(study), registry(), trusted=False, adopt=True)
    assert capfd.readouterr().err == ""
    put(study / "tune.json", ("question", "out"), f"{home}/{WORD}")
    with pytest.raises(ConfigError, match=r"tune\.json"):
        confirm_study(StudyFolder(study), registry(), trusted=False, adopt=True)


def test_what_is_adopted_was_shown_a_cluster_that_is_not_used_now_too(made, home, capfd):
    study = copied(made / "made" / "cluster", home / "outputs")
    without_seals(study)
    put(study / "study.json", ("launcher", "setup"), [f"{home}/{WORD}/program"])
    confirm_study(StudyFolder(study), registry(), trusted=True, adopt=True)
    assert f"{WORD}/program" in capfd.readouterr().err


def test_rewriting_a_study_elsewhere_does_not_move_its_relative_paths(made, home, monkeypatch):
    """recover and resume may be run in a folder that a stranger made; the paths are those of the command that made it."""
    from servebench.store.sealed import read_sealed
    from servebench.store.state import read_study, write_study

    study = copied(made / "made" / "process", home / "outputs")
    (home / "made-here").mkdir()
    monkeypatch.chdir(home / "made-here")
    folder = StudyFolder(study)
    assert not read_sealed(folder).here
    write_study(folder, read_study(folder))
    found = read_sealed(folder)
    assert (found.doubt, found.here) == (None, False)


# --- what commands read in a study that was measured

SIGNED_FILES = ("study.json", "plan.json", "tune.json", "*/manifest.json", "prompts/*/*.json.gz")
"""What makes servebench act: a change is noticed by whatever continues the study."""
DATA_FILES = ("*/run.json", "*/*.parquet", "*/points.csv", "*/engine.log", "*/parts/*", "*/raw/*", "summary/*", "at_work.json",
              "*/at_work.json", "*/report.html")  # fmt: skip
"""What was measured: shown and computed with, and nothing in it is a program, a variable, an address or a folder."""
RECEIPTS = ("tracking.json", "*/tracking.json")
"""What was sent where: signed, and ignored without one's own signature."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A study of two runs of which the second was killed in its middle, and the cache of who made it."""
    from servebench.run.phase import dump_facts
    from support.records import phase_facts

    folder = tmp_path_factory.mktemp("measured")
    words = (*STUDIES["simulated"], "study.name=s")
    run_servebench(folder, *words, env={"SERVEBENCH_CACHE": str(folder / "cache")}, code=0)
    study = folder / "outputs" / "s"
    facts = phase_facts(run_id="s/01_sglang_unique", point="c1")
    (study / "01_sglang_unique" / "raw").mkdir()
    (study / "01_sglang_unique" / "raw" / "c1.json").write_bytes(dump_facts(facts))
    (study / "01_sglang_unique" / "raw" / "c1.spool").write_bytes(b"")
    for name in ("points.parquet", "points.csv", "requests.parquet"):
        (study / "01_sglang_unique" / name).unlink()
    put(study / "01_sglang_unique" / "run.json", ("status",), "interrupted")
    return folder


@pytest.fixture
def killed(measured, home, monkeypatch):
    monkeypatch.setenv("SERVEBENCH_CACHE", str(measured / "cache"))
    return copied(measured / "outputs" / "s", home / "outputs")


def test_every_file_that_commands_read_is_signed_or_data(run_main, killed, home):
    """A file that a command newly reads has to be put in one of the lists."""
    opened = set()
    tries = [("recover", "s"), ("resume", "s"), ("work", "s", first_run(killed)), ("sync", "s"), *READING]
    for words in (*tries, ("run", "--lock", str(killed / first_run(killed) / "manifest.json"))):
        with recorded() as acts:
            run_main(*words)
        opened |= {
            path for path in acts.opened(killed) if (killed / path).is_file() and not path.endswith((".tmp", ".lock"))
        }
    listed = (*SIGNED_FILES, *DATA_FILES, *RECEIPTS)
    assert {path for path in opened if not any(fnmatch(path, one) for one in listed)} == set()
    assert {"study.json", "plan.json"} < opened
    assert any(fnmatch(path, "prompts/*/*.json.gz") for path in opened)


def change_byte(path, chance):
    data = bytearray(path.read_bytes())
    place = chance.randrange(len(data)) if data else 0
    path.write_bytes(
        bytes([*data[:place], (data[place] + 1 + chance.randrange(254)) % 256 if data else 7, *data[place + 1 :]])
    )


def content(path):
    """What a file says; None if it cannot be read at all, which ends what needs it."""
    try:
        data = path.read_bytes()
        return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (ValueError, OSError, EOFError, zlib.error):
        return None


def test_a_changed_byte_of_what_is_signed_is_noticed(run_main, killed, home):
    chance = random.Random("bytes")
    before = {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()}
    for path in [path for path in before if any(fnmatch(str(path.relative_to(killed)), one) for one in SIGNED_FILES)]:
        for _ in range(3):
            was = content(path)
            change_byte(path, chance)
            now, manifest = content(path), path.name == "manifest.json"
            says = manifest and isinstance(now, dict) and now.get("config") != was["config"]
            if says or (now != was and not manifest):
                code, acts, said = harmless(run_main, ("resume", "s"), killed, home, path)
                assert code != 0, said
                assert acts.of(*STARTS, *SENDS) == [], said
            path.write_bytes(before[path])


def change_data(path, chance, home):
    if path.suffix == ".json" and chance.random() < 0.7:
        return change_field(path, chance, home)
    change_byte(path, chance)
    return f"a byte of {path.name}"


def changed_data_at_random(run_main, killed, home, seed):
    chance = random.Random(f"data/{seed}")
    (killed / "at_work.json").write_text(json.dumps({"host": "far", "pid": 7, "job": "12"}))
    os.utime(killed / "at_work.json", (1.0, 1.0))
    files = [path for path in sorted(killed.rglob("*")) if path.is_file()]
    path = chance.choice([p for p in files if any(fnmatch(str(p.relative_to(killed)), one) for one in DATA_FILES)])
    what = f"seed {seed}: {path.relative_to(killed)}: {change_data(path, chance, home)}"
    for words in (*chance.sample(READING, 3), ("resume", "s"), ("resume", "s", "--failed")):
        _, acts, said = harmless(run_main, words, killed, home, what)
        # ports of this machine are looked at for the engine
        assert [one for one in acts.of(*SENDS) if "127.0.0.1" not in one] == [], said


@pytest.mark.parametrize("seed", range(3))
def test_changed_data_does_nothing_unasked(run_main, killed, home, seed):
    changed_data_at_random(run_main, killed, home, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 20))
def test_much_changed_data_does_nothing_unasked(run_main, killed, home, seed):
    changed_data_at_random(run_main, killed, home, seed)


def test_a_receipt_that_is_changed_is_ignored(killed, home):
    from servebench.store.state import read_study
    from servebench.store.tracking import sent_before

    folder = StudyFolder(killed)
    for text in ("{}", '{"uri_digest": "x", "mlflow_run_id": "y", "study": "z"}', "[]", "\x00"):
        folder.tracking.write_text(text)
        assert not sent_before(folder, read_study(folder), "sqlite:///x", "e")


@pytest.mark.slow
def test_a_tune_that_was_cut_off_goes_on_without_a_question_and_a_changed_one_does_not(run_main, home):
    """Its own files are signed at every step."""
    words = ("tune", "engine=vllm", "launch=simulated", "gpu=h100", "load.concurrency=[4]", "load.requests=20",
             "load.self_check=never", "tune.trials=6", "tune.count=2", "tracking=none", "study.name=s")  # fmt: skip
    assert run_main(*words).returncode == 0
    study = home / "outputs" / "s"
    again = run_main("tune", "--continue", "s", "tune.trials=6", code=0)
    assert "trust" not in again.stderr
    for path in study.glob("prompts/*/*.json.gz"):
        change_byte(path, random.Random(1))
    for name in ("tune.json", "study.json", "plan.json", "01_vllm_many-requests-on-a-large-gpu/manifest.json"):
        kept = (study / name).read_bytes()
        change_field(study / name, random.Random(2), home, "config" if name.endswith("manifest.json") else None)
        code, _, said = harmless(run_main, ("tune", "--continue", "s", "tune.trials=9"), study, home, name)
        assert code != 0, said
        (study / name).write_bytes(kept)
