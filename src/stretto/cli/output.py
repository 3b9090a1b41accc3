"""Print rows: as a table for people, as one JSON document for programs."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.bench.showing.document import plain
from stretto.bench.showing.report import aligned

_FAR = re.compile(r"\[(\d+)/(\d+)\] ")
_BAR = 24
_SILENT_S = 10.0
"""How long a log hears nothing."""


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document, nothing else"
    )


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document, without numbers that JSON does not have."""
    print(json.dumps(plain(document), indent=2, allow_nan=False))


def print_rows(
    args: argparse.Namespace, rows: Sequence[Mapping[str, Any]], title: str = ""
) -> None:
    """Print rows in the form that was asked for."""
    if args.json:
        print_json({"command": args.command, "rows": list(rows)})
        return
    if title:
        print(title)
    print(table(rows))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as aligned columns under their names."""
    if not rows:
        return "nothing"
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names] + [[_spell(row.get(name)) for name in names] for row in rows]
    right = [
        all(isinstance(row.get(name), int | float | None) for row in rows)
        for name in names
    ]
    return aligned(cells, right)


def _spell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


def bar(done: int, total: int) -> str:
    """Return how much of the whole is done, as a bar and in numbers."""
    full = _BAR * min(done, total) // max(1, total)
    return f"[{'#' * full}{'-' * (_BAR - full)}] {done}/{total}"


class Progress:
    """A bar on a terminal that says what is being done; elsewhere a line now and then.

    What begins with `[3/10] ` says itself how far that is.
    """

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._shown = sys.stderr.isatty()
        self._told = time.monotonic()

    def step(self, what: str) -> None:
        """Say what comes next."""
        self._say(what)
        self._done += 1

    def within(self, what: str) -> None:
        """Say what the present step comes to."""
        self._done -= 1
        self.step(what)

    def _say(self, what: str) -> None:
        now = time.monotonic()
        if self._shown or now - self._told >= _SILENT_S:
            done, total = self._done, self._total
            if told := _FAR.match(what):
                done, total = int(told[1]) - 1, int(told[2])
                what = what[told.end() :]
            begin, end = ("\r\x1b[K", "") if self._shown else ("", "\n")
            sys.stderr.write(f"{begin}{bar(done, total)} {what}{end}")
            sys.stderr.flush()
            self._told = now

    def __enter__(self) -> Progress:
        """Start."""
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the terminal as it was."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
