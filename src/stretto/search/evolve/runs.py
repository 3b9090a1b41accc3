"""A search as one SQLite file, written after every verdict: it may be killed any time.

The same problem, seed and number of evaluations write the same bytes, in one go or
resumed, where judges give the same verdicts.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.errors import ParseError
from stretto.search.evolve.loop import Trial
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
        try:
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
        except sqlite3.DatabaseError as e:
            raise ParseError(f"{path}: {e}: want a file of `stretto search`") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def said(self) -> dict[str, str]:
        """What is said of the whole: the problem, its settings, in the end the best."""
        return dict(self._file.execute("select key, value from said"))

    def say(self, **what: str) -> None:
        """Write what has not been said, and nothing where all of it has."""
        held = self.said
        if new := [(k, v) for k, v in what.items() if held.get(k) != v]:
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
        self._file.execute(f"insert into judged values ({', '.join('?' * 12)})", row)

    def rows(self) -> Iterator[Judged]:
        """Yield all verdicts, in the order in which they were asked for."""
        found = self._file.execute(
            "select * from judged order by generation, rung, number"
        )
        for number, rung, text, way, parents, island, generation, *rest in found:
            cost, low, high, refused, facts = rest
            yield Judged(
                Trial(number, text, rung, way, tuple(map(int, parents.split())), island,
                      generation),
                Verdict(_number(cost), _number(low), _number(high), refused,
                        json.loads(facts)),
            )  # fmt: skip

    def answer(self, digest: str) -> str | None:
        """Return what a model answered to a question, if it was asked."""
        found = self._file.execute(
            "select answer from answers where digest = ?", (digest,)
        ).fetchone()
        return str(found[0]) if found else None

    def answered(self, digest: str, answer: str) -> None:
        """Keep a model's answer: who searches again need not ask."""
        self._file.execute(
            "insert or ignore into answers values (?, ?)", (digest, answer)
        )

    def copy(self, path: str | Path) -> None:
        """Write this run into another file."""
        with contextlib.closing(sqlite3.connect(path)) as other:
            self._file.backup(other)


def _number(value: Any) -> float:
    """Return a number as it was before SQLite: it has no NaN."""
    return float("nan") if value is None else float(value)
