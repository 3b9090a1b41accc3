"""Files that may be lost: whatever is wrong with one, it is as if it had not been."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto import caches
from stretto.executors.cuda.codegen import cache


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_what_is_stored_is_loaded():
    """And what is not there is None, without a word."""
    path = caches.folder("a") / "b"
    assert caches.load(path) is None
    caches.store(path, b"data")

    assert b"data" == caches.load(path)
    assert 0o700 == path.parent.stat().st_mode & 0o777


@given(st.data())
def test_no_changed_file_is_ever_loaded(data):
    """Cut off, changed or longer; it is deleted, and the warning names it."""
    path = caches.folder("c") / "d"
    caches.store(path, b"what was compiled")
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    how = data.draw(st.sampled_from(["cut", "change", "add"]))
    if how == "cut":
        raw = raw[:at]
    elif how == "change":
        raw[at] ^= data.draw(st.integers(1, 255))
    else:
        raw += b"x"
    path.write_bytes(raw)

    with pytest.warns(RuntimeWarning, match="checksum is wrong; it is made anew") as w:
        assert caches.load(path) is None
    assert str(path) in str(w[0].message)
    assert not path.exists()


@pytest.mark.parametrize("which", ["file", "folder"])
def test_what_others_may_write_is_not_loaded(which):
    """Kept code is run, so nobody else may have written it."""
    path = caches.folder("e") / "f"
    caches.store(path, b"data")
    (path if which == "file" else path.parent).chmod(0o777)

    with pytest.warns(RuntimeWarning, match="others may write it"):
        assert caches.load(path) is None


def test_a_folder_where_a_file_should_be_is_no_error():
    """Nor a file where the folder should be, nor a disk that is full."""
    (caches.folder("g") / "h").mkdir(parents=True)
    with pytest.warns(RuntimeWarning):
        assert caches.load(caches.folder("g") / "h") is None
    caches.folder("i").write_text("a file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        caches.store(caches.folder("i") / "j", b"data")
        assert caches.load(caches.folder("i") / "j") is None
    caches.store(caches.folder("g") / ("k" * 300), b"data")
    assert ["h"] == [path.name for path in caches.folder("g").iterdir()]


def test_a_spoilt_kernel_is_compiled_anew():
    """Garbage never reaches a GPU as code."""
    cache.store("key", b"\x7fELF")
    (cache.folder() / "key.cubin").write_bytes(b"garbage")

    with pytest.warns(RuntimeWarning, match=r"key.cubin"):
        assert cache.load("key") is None
