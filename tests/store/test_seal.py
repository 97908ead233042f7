"""A signature covers everything that it is for, and the key is its owner's alone."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.store.seal import FIELD, KEY_FILE, origin_of, signed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVEBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_what_was_signed_is_known_again_after_a_file(document):
    document.pop(FIELD, None)
    stored = json.loads(json.dumps(signed("plan", document)))
    assert origin_of("plan", stored).own


@pytest.mark.parametrize(
    ("kind", "scope"), [("study", ("a",)), ("plan", ()), ("plan", ("b",)), ("plan", ("a", "")), ("plan", ("", "a"))]
)
def test_a_signature_is_for_one_kind_and_one_scope(kind, scope):
    document = signed("plan", {"x": 1}, "a")
    assert origin_of("plan", document, "a").own
    assert not origin_of(kind, document, *scope).own


@pytest.mark.parametrize(
    "other", [{"x": 2}, {"x": True}, {"x": 1.0}, {"x": "1"}, {"x": 1, "y": None}, {}, {"x": [1]}], ids=str
)
def test_no_value_can_be_changed(other):
    seal = signed("plan", {"x": 1})[FIELD]
    assert not origin_of("plan", {**other, FIELD: seal}).own


@pytest.mark.parametrize("seal", [None, "", [], {}, {"mac": None}, {"mac": "\ud800", "folder": 1}, {"mac": [1]}])
def test_a_signature_of_any_form_is_no_error(seal):
    signed("plan", {})
    assert not origin_of("plan", {"x": 1, FIELD: seal}).own


def test_a_signature_says_whether_it_is_of_this_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = signed("plan", {})
    assert origin_of("plan", document).here
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert origin_of("plan", document).own
    assert not origin_of("plan", document).here
    assert str(tmp_path) not in json.dumps(document)


def test_the_key_is_made_once_and_only_its_owner_can_read_it(cache):
    with ThreadPoolExecutor(8) as pool:
        documents = list(pool.map(lambda number: signed("plan", {"x": number}), range(40)))
    assert all(origin_of("plan", one).own for one in documents)
    assert [path.name for path in cache.iterdir()] == [KEY_FILE]
    assert stat.S_IMODE((cache / KEY_FILE).stat().st_mode) == 0o600


def spoil(path, how):
    key = path.read_bytes()
    path.unlink()
    if how == "a link":
        path.with_name("elsewhere").write_bytes(key)
        path.with_name("elsewhere").chmod(0o600)
        path.symlink_to("elsewhere")
    elif how == "a pipe":
        os.mkfifo(path, 0o600)
    elif how == "a folder":
        path.mkdir()
    else:
        path.write_bytes(key[:5] if how == "short" else key)
        path.chmod(0o644 if how == "readable" else 0o600)


@pytest.mark.parametrize("how", ["readable", "short", "a link", "a pipe", "a folder"])
def test_a_key_that_others_may_know_signs_and_verifies_nothing(cache, how):
    document = signed("plan", {"x": 1})
    spoil(cache / KEY_FILE, how)
    assert "key" in origin_of("plan", document).doubt
    assert FIELD not in signed("plan", {"x": 1})


@pytest.mark.parametrize("place", ["HERE/file/cache", "~nobody-of-this-name/cache"])
def test_without_a_cache_folder_nothing_is_signed(tmp_path, monkeypatch, place):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SERVEBENCH_CACHE", place.replace("HERE", str(tmp_path)))
    document = signed("plan", {"x": 1})
    assert FIELD not in document
    assert not origin_of("plan", document).own


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_key_of_another_user_signs_and_verifies_nothing(cache):
    cache.mkdir()
    (cache / KEY_FILE).write_bytes(bytes(32))
    os.chown(cache / KEY_FILE, 12345, 12345)
    assert FIELD not in signed("plan", {"x": 1})
