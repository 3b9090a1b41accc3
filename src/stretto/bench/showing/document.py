"""The document of a run: what was asked, where, and the rows; JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from stretto.bench import machine
from stretto.bench.peers import OURS
from stretto.bench.stats import geomean
from stretto.bench.workload.task import BenchTask
from stretto.errors import ParseError, reading
from stretto.runtime.choice import spell_size

SCHEMA = 1
_UNSHOWN = ("times_us", "collective")


class BenchDocument(dict[str, Any]):
    """The document of a run, which notebooks show as the table of its rows."""

    def _repr_html_(self) -> str:
        """Return the rows as a table."""
        shown = ("test", "size", "contender", "median us", "bus GB/s", "vs stretto")
        head = "".join(f"<th>{name}</th>" for name in shown)
        rows = "".join(
            "<tr>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(row))
            + "</tr>"
            for row in self["rows"]
        )
        told = escape(str(self.get("command", "")))
        return f"<p>{told}</p><table><tr>{head}</tr>{rows}</table>"


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Return a row in words; figures that nobody knows are `-`."""
    figures = (row.get(name) for name in ("p50_us", "busbw_gbps", "ratio"))
    return [
        str(row.get("test", "-")),
        spell_size(int(row.get("nbytes", 0))),
        str(row.get("contender", "-")),
        *("-" if figure is None else f"{figure:.4g}" for figure in figures),
    ]


def document_of(
    task: BenchTask, found: Mapping[str, Any], command: Sequence[str]
) -> BenchDocument:
    """Return the whole document of a run."""
    rows = list(found["rows"])
    return BenchDocument(
        schema=SCHEMA,
        command=" ".join(command),
        commit=machine.commit(),
        machine=machine.machine(),
        versions=machine.versions(),
        task={k: v for k, v in task.as_json().items() if k != "meet"},
        limits=found["limits"],
        missing=found["missing"],
        geomean=geomeans(rows),
        rows=rows,
    )


def geomeans(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return by contender, and by test, how many times faster stretto is."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(str(r["contender"]) for r in rows):
        if name == OURS:
            continue
        mine = [r for r in rows if r["contender"] == name and r["ok"] and r["ratio"]]
        by_test = {
            test: geomean(r["ratio"] for r in mine if r["test"] == test)
            for test in dict.fromkeys(str(r["test"]) for r in mine)
        }
        by_test["all"] = geomean(r["ratio"] for r in mine)
        found[name] = {k: v for k, v in by_test.items() if v is not None}
    return found


def as_text(document: Mapping[str, Any]) -> str:
    """Return the JSON text, a row a line, without numbers that JSON does not have."""
    whole = plain(document, digits=6)
    rows = [json.dumps(row, allow_nan=False) for row in whole.pop("rows")]
    head = json.dumps(whole, indent=1, allow_nan=False).removesuffix("\n}")
    return head + ',\n "rows": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"


def as_csv(document: Mapping[str, Any]) -> str:
    """Return the rows as comma-separated values, a header first."""
    rows = document["rows"]
    names = [n for n in (rows[0] if rows else {}) if n not in _UNSHOWN]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([row.get(name) for name in names] for row in rows)
    return text.getvalue()


def read_document(path: str | Path) -> BenchDocument:
    """Read a document that `stretto bench --json` wrote."""
    with reading(ParseError, str(path), "what stretto bench --json wrote"):
        data: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    rows = data.get("rows") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ParseError(f"{path}: no rows; want what stretto bench --json wrote")
    if data.get("schema") != SCHEMA:
        raise ParseError(
            f"{path}: schema {str(data.get('schema'))[:20]}; this version reads "
            f"{SCHEMA}"
        )
    return BenchDocument(data)


def plain(value: Any, *, digits: int | None = None) -> Any:
    """Return a value without numbers that JSON does not have; None: not rounded."""
    if isinstance(value, Mapping):
        return {str(k): plain(v, digits=digits) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, digits=digits) for v in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return value if digits is None else float(f"{value:.{digits}g}")
