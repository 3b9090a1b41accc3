"""The best configuration of anything: a script, an engine, a recorded table."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import random
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from stretto.errors import CallError, ParseError, StrettoError, reading
from stretto.search.evolve.problem import Problem, Verdict
from stretto.search.scout import scout
from stretto.search.spaces import Configuration, Space, load_space

__all__ = ["OFFER", "ConfigProblem"]

Objective = Callable[..., Any]


class ConfigProblem(Problem[Configuration]):
    """A space of knobs, and what a configuration costs."""

    name: ClassVar[str] = "config"
    loop = staticmethod(scout)

    def __init__(
        self,
        space: str | Space,
        *,
        objective: str | Objective = "",
        recorded: str = "",
        cheap: str | Objective = "",
        deadline_s: float = 600.0,
    ) -> None:
        """Give one of two: an `objective`, or a `recorded` table with a column `cost`.

        An objective is a function of the knobs by name, or a command that prints a
        number, or JSON with `cost`, last; {args} in it becomes --knob=value and so on,
        {knob} a value. `cheap` is another, less true, asked first.
        """
        self.space = load_space(Path(space)) if isinstance(space, str) else space
        if bool(objective) == bool(recorded):
            raise CallError("config: want an objective, or a recorded table")
        if not deadline_s > 0:
            raise CallError(f"deadline_s={deadline_s}: want seconds, above 0")
        self._deadline_s = deadline_s
        self._objectives = [o for o in (cheap, objective) if o]
        for one in self._objectives:
            if isinstance(one, str) and not _words(one):
                raise CallError(
                    f"objective {one[:80]!r}: want a command, or a function"
                )
        self._table = _table(Path(recorded), self.space) if recorded else {}
        self.rungs = ("cheap", "true") if cheap else ("true",)

    @property
    def said(self) -> Mapping[str, str]:
        """Return the space and what judges, by text or digest."""
        told = [o if isinstance(o, str) else o.__qualname__ for o in self._objectives]
        table = repr(sorted(self._table.items())).encode()
        return {
            "space": hashlib.sha256(repr(self.space).encode()).hexdigest()[:16],
            "objective": json.dumps(told),
            "recorded": hashlib.sha256(table).hexdigest()[:16] if self._table else "",
        }

    def seeds(self) -> Sequence[Configuration]:
        """Return the middle of the space, as far as it holds."""
        rng = random.Random(0)
        middle = {k.name: k.value(0.5) for k in self.space.knobs if k.is_dense}
        first = {k.name: k.values[0] for k in self.space.knobs if not k.is_dense}
        found = self.space.complete(middle | first, rng)
        return [found or self.space.draw(rng)]

    def spell(self, candidate: Configuration) -> str:
        """Return NAME=VALUE, one after the other."""
        return self.space.spell(candidate)

    def parse(self, text: str) -> Configuration:
        """Return the configuration of a text."""
        return self.space.parse(text)

    def judge(self, candidate: Configuration, rung: int, *, fresh: int) -> Verdict:
        """Return what a configuration costs."""
        if self._table:
            found = self._table.get(self.spell(candidate))
            return (
                Verdict(refused="not in the table")
                if found is None
                else Verdict.of(found)
            )
        objective = self._objectives[rung]
        if isinstance(objective, str):
            return self._command(objective, candidate)
        try:
            return Verdict.of(objective(**dict(candidate)))
        except Exception as e:
            return Verdict(refused=f"{type(e).__name__}: {e}"[:400])

    def _command(self, command: str, candidate: Configuration) -> Verdict:
        given = {name: _said(value) for name, value in candidate}
        args = [f"--{name}={value}" for name, value in given.items()]
        words: list[str] = []
        for word in _words(command):
            if word == "{args}":
                words += args
                continue
            for name, value in given.items():
                word = word.replace(f"{{{name}}}", value)
            words.append(word)
        try:
            child = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError as e:
            raise CallError(f"objective: {e}") from None
        try:
            out, err = child.communicate(timeout=self._deadline_s)
        except subprocess.TimeoutExpired:
            return Verdict(refused=f"it did not end in {self._deadline_s:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()
        return _heard(child.returncode, out, err)


def _heard(status: int, out: bytes, err: bytes) -> Verdict:
    """Return the verdict of what a command printed: its last line counts."""
    if status:
        said = (
            err.decode(errors="replace").strip() or out.decode(errors="replace").strip()
        )
        return Verdict(refused=f"it ended with {status}: {said[-300:]}")
    lines = out.decode(errors="replace").strip().splitlines()
    last = lines[-1].strip() if lines else ""
    try:
        found = json.loads(last)
    except ValueError:
        return Verdict(refused=f"its last line is no number, nor JSON: {last[:200]!r}")
    if isinstance(found, dict):
        if "cost" not in found:
            return Verdict(refused=f"its JSON has no cost: {last[:200]}")
        found = found["cost"]
    if isinstance(found, bool) or not isinstance(found, int | float):
        return Verdict(refused=f"its cost is no number: {str(found)[:80]!r}")
    return Verdict.of(found)


def _words(command: str) -> list[str]:
    """Return the words of a command; none where it cannot be cut into words."""
    try:
        return shlex.split(command)
    except ValueError:  # a quotation that does not end
        return []


def _said(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table(path: Path, space: Space) -> dict[str, float]:
    """Return what a recorded table says: a column for each knob, and one `cost`."""
    found: dict[str, float] = {}
    with (
        reading(ParseError, str(path), "CSV"),
        path.open(encoding="utf-8", newline="") as file,
    ):
        rows = csv.DictReader(file)
        names = [k.name for k in space.knobs]
        if missing := [n for n in (*names, "cost") if n not in (rows.fieldnames or ())]:
            raise ParseError(
                f"{path}: no column {missing[0]}: want {', '.join(names)}, cost"
            )
        for number, row in enumerate(rows, 2):
            text = " ".join(f"{n}={row[n]}" for n in names if row[n])
            try:
                found[space.spell(space.parse(text))] = float(row["cost"])
            except (TypeError, ValueError, StrettoError) as e:
                raise ParseError(f"{path}:{number}: {e}") from None
    if not found:
        raise ParseError(f"{path}: no rows")
    return found


OFFER = ConfigProblem
