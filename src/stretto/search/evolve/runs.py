"""A search as one SQLite file, written after every verdict: it may be killed any time.

The same problem, seed and number of evaluations write the same bytes, in one go or
resumed, where judges give the same verdicts.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stretto.errors import ParseError, reading
from stretto.search.evolve.loop import Settings, Trial
from stretto.search.evolve.problem import Verdict

__all__ = ["Judged", "SearchRun"]

_VERSION = "1"
_TABLES = """
create table said (key text primary key, value text) without rowid;
create table judged (
  number int, rung int, text text, way text, parents text, island int, generation int,
  cost real, low real, high real, refused text, facts text,
  primary key (number, rung)) without rowid;
create table answers (digest text primary key, answer text) without rowid;
"""
_NUMBER = float, type(None)
_KINDS = (
    int, int, str, str, str, int, int, _NUMBER, _NUMBER, _NUMBER, str, str
)  # fmt: skip
"""What stands in each column of `judged`."""
_WANT = "a file of `stretto search`"


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate on a rung, and what was said of it."""

    trial: Trial
    verdict: Verdict


class SearchRun:
    """What is known of a search, in its file or in memory."""

    def __init__(self, path: str | Path = ":memory:") -> None:
        """Open a file that holds a search, or make it."""
        self.path = str(path)
        with self._reading():
            self._file = sqlite3.connect(self.path, isolation_level=None)
            weakref.finalize(self, self._file.close)  # also where what follows fails
            self._file.execute("pragma synchronous = off")  # the process may die
            held = {
                row[0] for row in self._file.execute("select name from sqlite_master")
            }
            if not held:
                self._file.executescript(f"begin;{_TABLES}commit;")
                self.say(version=_VERSION)
            elif "judged" not in held or self.said.get("version") != _VERSION:
                raise ParseError(f"{path}: no search, or one of another version")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Say as one error whatever a file does that is damaged, or not ours."""
        try:
            with reading(ParseError, self.path, _WANT):
                yield
        except sqlite3.Error as e:
            raise ParseError(f"{self.path}: {e}; want {_WANT}") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def said(self) -> dict[str, str]:
        """What is said of the whole: the problem, its settings, in the end the best."""
        with self._reading():
            rows = self._file.execute("select key, value from said").fetchall()
            for row in rows:
                _check(row, (str, str))
            return dict(rows)

    @property
    def settings(self) -> Settings:
        """How it was searched."""
        said = self.said
        with self._reading():
            kinds = {key: type(one) for key, one in asdict(Settings()).items()}
            given: dict[str, Any] = {k: kind(said[k]) for k, kind in kinds.items()}
            return Settings(**given)

    def say(self, **what: str) -> None:
        """Write what has not been said, and nothing where all of it has."""
        held = self.said
        if new := [(k, v) for k, v in what.items() if held.get(k) != v]:
            with self._reading():
                self._file.execute("begin")
                self._file.executemany("insert or replace into said values (?, ?)", new)
                self._file.execute("commit")

    def begin(self, said: Mapping[str, str]) -> None:
        """Say what is searched; ParseError where another search is in the file."""
        held = self.said
        if "problem" in held:
            for key in sorted(
                {*held, *said} - {"version", "best", "held_out", "arguments"}
            ):
                if held.get(key) != said.get(key):
                    raise ParseError(
                        f"{self.path} was searched with {key} {held.get(key)!r}, not "
                        f"{said.get(key)!r}: want what it began with, or another file"
                    )
        self.say(**said)

    def add(self, trial: Trial, verdict: Verdict) -> None:
        """Write a verdict."""
        row = (
            trial.number, trial.rung, trial.text, trial.way,
            " ".join(map(str, trial.parents)), trial.island, trial.generation,
            verdict.cost, verdict.low, verdict.high, verdict.refused,
            json.dumps(dict(verdict.facts), sort_keys=True),
        )  # fmt: skip
        with self._reading():
            marks = ", ".join("?" * len(row))
            self._file.execute(f"insert into judged values ({marks})", row)

    def rows(self) -> Sequence[Judged]:
        """Return all verdicts, in the order in which they were asked for."""
        with self._reading():
            every = "select * from judged order by generation, rung, number"
            return [_judged(row) for row in self._file.execute(every)]

    def answer(self, digest: str) -> str | None:
        """Return what a model answered to a question, if it was asked."""
        with self._reading():
            found = self._file.execute(
                "select answer from answers where digest = ?", (digest,)
            ).fetchone()
        return str(found[0]) if found else None

    def answered(self, digest: str, answer: str) -> None:
        """Keep a model's answer: who searches again need not ask."""
        with self._reading():
            self._file.execute(
                "insert or ignore into answers values (?, ?)", (digest, answer)
            )

    def copy(self, path: str | Path) -> None:
        """Write this run into another file."""
        with contextlib.closing(sqlite3.connect(path)) as other:
            self._file.backup(other)


def _check(row: Sequence[Any], kinds: Sequence[Any]) -> None:
    """Raise unless a row of a table has a value of each kind, and no more."""
    for value, kind in zip(row, kinds, strict=True):
        if not isinstance(value, kind):
            raise TypeError(f"{str(value)[:40]!r} in a table where it cannot be")


def _judged(row: Sequence[Any]) -> Judged:
    """Return a candidate, and what was said of it, as a row has them."""
    _check(row, _KINDS)
    number, rung, text, way, parents, island, generation, *rest = row
    cost, low, high, refused, spelled = rest
    facts = json.loads(spelled)
    _check([facts], [dict])
    made = tuple(map(int, parents.split()))
    return Judged(
        Trial(number, text, rung, way, made, island, generation),
        Verdict(_number(cost), _number(low), _number(high), refused, facts),
    )


def _number(value: Any) -> float:
    """Return a number as it was before SQLite: it has no NaN."""
    return float("nan") if value is None else float(value)
