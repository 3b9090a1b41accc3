"""Files of a search that were damaged, or that others wrote, are refused in words."""

import contextlib
import random
import sqlite3

import pytest
from tests.pure.search.planted import Planted

from stretto.errors import ParseError, StrettoError
from stretto.search import evolve, replay
from stretto.search.evolve import SearchRun
from stretto.studio.inputs.loading import _search

COLUMNS = (
    "number", "rung", "text", "way", "parents", "island", "generation", "cost", "low",
    "high", "refused", "facts",
)  # fmt: skip
VALUES = "null", "x'ff00'", "'a b'", "'{'", "'[1]'", "7", "-1", "1e999", "''"
SETTINGS = "evals", "seed", "islands", "brood", "members", "explore"


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """Return the bytes of a run."""
    path = tmp_path_factory.mktemp("searched") / "run"
    evolve(Planted(), evals=20, seed=1, path=path).run.close()
    return path.read_bytes()


def read(path):
    """Read all that there is in a run; return why it is refused, or nothing."""
    try:
        run = SearchRun(path)
        with contextlib.closing(run):
            said, rows = run.said, run.rows()
            assert repr(rows) == repr(_search(path)[1])  # nan, too
            assert all(isinstance(text, str) for text in said.values())
            assert all(isinstance(one.trial.text, str) for one in rows)
            run.settings  # noqa: B018 - it is read
            run.answer("digest")
    except ParseError as e:
        refusal = str(e)
    else:
        return ""
    assert str(path) in refusal
    assert "\n" not in refusal
    return refusal


def test_a_run_as_it_was_written_is_read(tmp_path, searched):
    """A run as it was written is read."""
    path = tmp_path / "run"
    path.write_bytes(searched)
    assert not read(path)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("column", COLUMNS)
def test_whatever_stands_in_a_column_is_read_or_refused(
    tmp_path, searched, column, value
):
    """Whatever stands in a column is read or refused."""
    path = tmp_path / "run"
    path.write_bytes(searched)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute(f"update or ignore judged set {column} = {value} where number = 3")
    read(path)


@pytest.mark.parametrize("key", SETTINGS)
@pytest.mark.parametrize("change", ["value = 'x'", "value = null", "key = 'other'"])
def test_settings_that_are_none_are_refused(tmp_path, searched, key, change):
    """A replay needs all of them, and each is a number."""
    path = tmp_path / "run"
    path.write_bytes(searched)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute(f"update said set {change} where key = '{key}'")
    assert read(path)
    with pytest.raises(ParseError):
        replay(Planted(), SearchRun(path))


@pytest.mark.parametrize("table", ["said", "judged", "answers"])
def test_tables_that_are_missing_or_others_are_refused(tmp_path, searched, table):
    """A table of other columns is none of ours, nor is a file without it."""
    path = tmp_path / "run"
    path.write_bytes(searched)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute(f"drop table {table}")
    assert read(path)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute(f"create table {table} (key text)")
    assert read(path)


def test_bytes_that_have_changed_are_refused_or_do_no_harm(tmp_path, searched):
    """Of 300 files with a few wrong bytes, or an end too early, none does worse."""
    draw, refused = random.Random(5), 0
    for nth in range(300):
        data = bytearray(searched)
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path = tmp_path / f"run{nth}"
        path.write_bytes(data[: draw.choice([len(data), draw.randrange(len(data))])])
        refused += bool(read(path))
        with contextlib.suppress(StrettoError):
            evolve(Planted(), evals=20, seed=1, path=path)
    assert 30 < refused < 300
