"""What is found by name: in a folder, and in what others have installed."""

import sys
from pathlib import Path

import pytest

import stretto
from stretto.errors import CallError, UnknownNameError
from stretto.registry import Registry, modules, texts

SOURCES = Path(stretto.__file__).parent


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """Return a package of modules, a folder and a package that adds to it."""
    home = tmp_path / "shelf_of_tests"
    (home / "gamma").mkdir(parents=True)
    for name in ("__init__", "alpha", "two_words", "_shared", "gamma/__init__"):
        text = (
            f"NAME = {name!r}\n" if name != "alpha" else "raise ImportError('late')\n"
        )
        (home / f"{name}.py").write_text(text)
    (tmp_path / "guests.py").write_text("class Delta:\n    NAME = 'delta'\n")
    about = tmp_path / "guests-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: guests\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[tests.shelf]\ndelta = guests:Delta\ngamma = guests:Delta\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield home.name
    for name in [name for name in sys.modules if name.startswith(home.name)]:
        del sys.modules[name]


def test_modules_and_entry_points_are_one_catalogue(shelf):
    """A folder's own come first, `_` is between ourselves, words are spelt with -."""
    found = Registry("thing", shelf, group="tests.shelf")

    assert ("alpha", "delta", "gamma", "two-words") == found.names()
    assert "two_words" == found.get("two-words").NAME
    assert "gamma/__init__" == found.get("gamma").NAME
    assert "delta" == found.get("delta").NAME


def test_listing_imports_nothing(shelf):
    """What cannot be imported costs only those who ask for it."""
    found = Registry("thing", shelf)

    assert "alpha" in found.names()
    with pytest.raises(ImportError, match="late"):
        found.get("alpha")


def test_where_things_are_folders_files_are_not(shelf):
    """They are what folders share."""
    assert ("gamma",) == Registry("thing", shelf, folders=True).names()
    assert ("alpha", "gamma", "two_words") == modules(shelf)


@pytest.mark.parametrize("name", ["alhpa", "_shared", "", None, 3, ["alpha"]])
def test_a_wrong_name_is_answered_with_the_right_ones(shelf, name):
    """Whatever was given; and with those that whoever asks wants listed."""
    found = Registry("thing", shelf, listed=lambda names: (*names, "all"))

    with pytest.raises(UnknownNameError, match=r"no thing named .*all"):
        found.get(name)


@pytest.mark.parametrize(
    ("offered", "what"), [("Thing", "a class"), ("Thing()", "one")]
)
def test_what_is_offered_is_of_its_kind(tmp_path, monkeypatch, offered, what):
    """A class or one of it, by the name OFFER; what is neither is refused in words."""
    home = tmp_path / f"offers_{what.replace(' ', '_')}"
    home.mkdir()
    (home / "__init__.py").write_text("")
    (home / "good.py").write_text(f"class Thing(dict): pass\nOFFER = {offered}\n")
    (home / "bad.py").write_text("OFFER = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Registry("thing", home.name)

    assert {} == found.offer("good", dict)
    for take in (found.offer, found.offered_class):
        with pytest.raises(CallError, match=r"thing 'bad' is 7; want a .*dict"):
            take("bad", dict)
    if what == "one":
        with pytest.raises(CallError, match="want a class of dict"):
            found.offered_class("good", dict)
    else:
        assert "Thing" == found.offered_class("good", dict).__name__


def test_texts_of_a_package_are_known_by_name():
    """Sorted, and only those that end as is asked."""
    machines = texts("stretto.topology", "machines")

    assert sorted(machines) == list(machines)
    assert "h200" in " ".join(machines.values())
    assert {} == texts("stretto.topology", "machines", ".cuh")


def test_nobody_else_scans_folders_of_modules():
    """One registry: no other scan, entry points read elsewhere, or texts looked for."""
    words = ("iter_modules", "entry_points(", "resources.files(")
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in words)
    }

    assert {"registry.py", "studio/web/__init__.py"} == found  # one page, many files
