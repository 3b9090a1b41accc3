"""What a run has found so far, in files: when its ranks end, the rest can go on.

Rank 0 writes a line for the machine's limits and who is missing, one for each case with
its rows; and beside them, who is about to be called: should nobody come back from that,
whoever starts the ranks again knows whom to leave out.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OPENING = -1
"""In place of a case: a peer is opened."""


class Journal:
    """The files, on the rank that writes them; nothing elsewhere, or where none are."""

    def __init__(self, path: str, rank: int) -> None:
        self._path = Path(path) if path and rank == 0 else None

    def opened(self, limits: dict[str, float], missing: dict[str, str]) -> None:
        """Note what the machine can do, and who is not there."""
        self._add({"limits": limits, "missing": missing})

    def done(self, at: int, rows: Sequence[dict[str, Any]]) -> None:
        """Note that a case has been measured."""
        self._add({"case": at, "rows": list(rows)})

    def lost(self, name: str, why: str) -> None:
        """Note that a contender is missing from now on."""
        self._add({"missing": {name: why}})

    def trying(self, who: Sequence[str], at: int = OPENING) -> None:
        """Note who is about to be called."""
        if self._path is not None:
            text = json.dumps({"case": at, "who": list(who)})
            _trying(self._path).write_text(text, encoding="utf-8")

    def _add(self, line: dict[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


@dataclass(slots=True, kw_only=True)
class JournalEntries:
    """What is in the files."""

    limits: dict[str, float] | None = None
    missing: dict[str, str] = field(default_factory=dict)
    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """By case."""
    case: int = OPENING
    who: tuple[str, ...] = ()
    """Who was about to be called, in which case, when the ranks ended."""

    def document(self) -> dict[str, Any]:
        """Return what a run returns."""
        return {
            "limits": self.limits,
            "missing": self.missing,
            "rows": [row for at in sorted(self.rows) for row in self.rows[at]],
        }


def read_journal(path: Path) -> JournalEntries:
    """Return what is in the files; the last line may not have been written whole."""
    kept = JournalEntries()
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for text in lines:
        with contextlib.suppress(json.JSONDecodeError):
            line = json.loads(text)
            kept.limits = line.get("limits", kept.limits)
            kept.missing |= line.get("missing", {})
            if "case" in line:
                kept.rows[line["case"]] = line["rows"]
    with contextlib.suppress(OSError, json.JSONDecodeError):
        told = json.loads(_trying(path).read_text(encoding="utf-8"))
        kept.case, kept.who = told["case"], tuple(told["who"])
    return kept


def _trying(path: Path) -> Path:
    return path.with_suffix(".trying")
