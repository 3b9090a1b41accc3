"""Show a document: a table on the terminal, a page in Markdown."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from stretto.bench.peers import OURS
from stretto.runtime.choice import spell_size

_HEAD = (
    *("test", "size", "who", "min us", "p50 us", "p95 us", "p99 us", "max us"),
    *("slowest", "alg GB/s", "bus GB/s", "of limit", "msg/s", "CPU", "SMs"),
    *("vs stretto", ""),
)
_WIDE = 240
"""Columns of a table that nobody's terminal limits."""
_FIRST_OUT = (
    *("SMs", "CPU", "slowest", "msg/s", "of limit", "p99 us", "max us", "alg GB/s"),
    *("p95 us", "min us", "bus GB/s"),
)
"""What a narrow terminal goes without, in this order."""
_NOTE = 12
"""Characters that the last column has at least."""
_LEGEND = """\
Times are microseconds a call, in loops as users write them: from the first rank in to
the last rank out, the median over batches, and in brackets the fastest and the 95th
percentile. First calls are said apart. Every result was compared with the oracle's
before and after it was timed."""


def show(
    document: Mapping[str, Any], *, rich: bool | None = None, width: int | None = None
) -> str:
    """Return the result as a terminal shows it; with colours where rich is there.

    It fits the terminal, or `width`: what has no room is left out, and named.
    """
    wanted = importlib.util.find_spec("rich") is not None if rich is None else rich
    room = width or _WIDE
    if width is None and sys.stdout.isatty():
        room = shutil.get_terminal_size((_WIDE, 24)).columns
    rows = [_cells(row) for row in document["rows"]]
    used = [i for i in range(len(_HEAD)) if any(row[i] for row in rows)]
    whole = [[line[i] for i in used] for line in (_HEAD, *rows)]
    (head, *shown), without = _fitted(whole, room)
    body = _rich(head, shown, document["rows"]) if wanted else table((head, *shown))
    said = [*_footer(document)]
    if without:
        said.append(f"no room for {', '.join(without)}: --csv FILE has all")
    lines = [*_warnings(document), body, *said]
    return "\n".join(_folded(line, room) for line in lines)


def _folded(text: str, room: int) -> str:
    """Return a sentence in lines that fit; a table has its lines already."""
    if "\n" in text or len(text) <= room:
        return text
    return textwrap.fill(text, max(20, room), subsequent_indent="  ")


def _fitted(lines: list[list[str]], room: int) -> tuple[list[list[str]], list[str]]:
    """Return the columns for which there is room, and the names of the others."""
    without: list[str] = []
    noted = lines[0][-1] == ""
    for name in _FIRST_OUT:
        if _width(lines, noted=noted) + _NOTE * noted <= room:
            break
        if name in lines[0]:
            at = lines[0].index(name)
            lines = [[*line[:at], *line[at + 1 :]] for line in lines]
            without.append(name)
    if noted:
        left = max(_NOTE, room - _width(lines, noted=True))
        lines = [[*line[:-1], _cut(line[-1], left)] for line in lines]
    return lines, without


def _width(lines: Sequence[Sequence[str]], *, noted: bool = False) -> int:
    """Return how wide a table is; without its last column, which is for notes."""
    columns = list(zip(*lines, strict=True))
    return sum(max(map(len, one)) + 2 for one in columns[: -1 if noted else None])


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 3].rstrip()}..."


def table(lines: Sequence[Sequence[str]]) -> str:
    """Return aligned columns; numbers stand to the right."""
    columns = range(len(lines[0]))
    return aligned(
        lines, [all(_numeric(line[i]) for line in lines[1:]) for i in columns]
    )


def aligned(lines: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Return aligned columns, some of which stand to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(right))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def markdown(document: Mapping[str, Any], title: str = "") -> str:
    """Return the page: what was run where, who is missing, and a table a test."""
    machine = document["machine"]
    lines = [
        f"# {title or 'Measured by stretto bench'}",
        "",
        f"    {document['command']}",
        "",
        f"Commit {document['commit'] or 'unknown'}; {machine['processor']}, "
        f"{machine['cores']} cores (load before: {machine['load']}), "
        f"{machine['system']}"
        + "".join(f"; {gpu}" for gpu in machine.get("gpus", ()))
        + ".",
        "; ".join(f"{k} {v}" for k, v in document["versions"].items()) + ".",
        _LEGEND,
        "",
        *(f"**{said}.**\n" for said in _warnings(document)),
    ]
    lines += [f"- {line}" for line in _footer(document)]
    for test in dict.fromkeys(str(row["test"]) for row in document["rows"]):
        rows = [row for row in document["rows"] if row["test"] == test]
        lines += ["", f"## {test}", "", *_grid(rows)]
    return "\n".join(lines) + "\n"


def _grid(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line a size and one column a contender."""
    names = list(dict.fromkeys(str(row["contender"]) for row in rows))
    sizes = list(dict.fromkeys(int(row["nbytes"]) for row in rows))
    found = {(int(r["nbytes"]), str(r["contender"])): r for r in rows}
    hides = any(r.get("hidden") is not None for r in rows)
    head = ["size", *names, "bus GB/s", *(["hidden"] if hides else []), "algorithm"]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for nbytes in sizes:
        ours = found.get((nbytes, OURS), {})
        cells = [spell_size(nbytes)]
        cells += [_timed(found.get((nbytes, name))) for name in names]
        cells.append(_number(ours.get("busbw_gbps")))
        if hides:
            cells.append(_percent(ours.get("hidden")))
        cells.append(str(ours.get("algorithm", "")))
        lines.append("| " + " | ".join(cells) + " |")
    for reason in dict.fromkeys(f"{r['contender']}: {r['refused']}" for r in rows
                                if r["refused"]):  # fmt: skip
        lines += ["", f"Not measured: {reason}."]
    return lines


def _timed(row: Mapping[str, Any] | None) -> str:
    if row is None or row["refused"]:
        return "-"
    if not row["ok"]:
        return "**WRONG**"
    low, high = _number(row["min_us"]), _number(row["p95_us"])
    return f"{_number(row['p50_us'])} ({low}-{high})"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    said = row["note"]
    if row["refused"]:
        said = row["refused"]
    elif not row["ok"]:
        said = f"WRONG: {row['wrong']}"
    elif row["contender"] == OURS:
        said = row["algorithm"]
    if row.get("hidden") is not None:
        said = f"{_percent(row['hidden'])} hidden  {said}"
    ratio = row["ratio"]
    return (
        str(row["test"]),
        spell_size(int(row["nbytes"])),
        str(row["contender"]),
        *(_number(row[f"{k}_us"]) for k in ("min", "p50", "p95", "p99", "max")),
        "" if row["slowest_rank"] is None else str(row["slowest_rank"]),
        _number(row["algbw_gbps"]),
        _number(row["busbw_gbps"]),
        _percent(row["limit_share"]),
        "" if row["messages_per_s"] is None else _many(row["messages_per_s"]),
        _percent(row["cpu_share"]),
        "" if row["sms"] is None else str(row["sms"]),
        "" if ratio is None else f"{ratio:.2f}x",
        str(said)[:100],
    )


def _warnings(document: Mapping[str, Any]) -> list[str]:
    """Return what makes all figures doubtful: it is said before any of them."""
    machine = document["machine"]
    said = load_warning(float(machine["load"]), int(machine["cores"]))
    return [said] if said else []


def load_warning(load: float, cores: int) -> str:
    """Return that others are at work on the machine; nothing when they are not."""
    if load <= cores / 2:
        return ""
    return (
        f"others were at work here: load {load} on {cores} cores before we began; do "
        f"not trust these figures: what spins, MPI above all, suffers most"
    )


def _footer(document: Mapping[str, Any]) -> list[str]:
    """Return who is missing, what is wrong, and the means."""
    lines = [f"{name} is missing: {why}" for name, why in document["missing"].items()]
    for name, ratios in document["geomean"].items():
        if "all" in ratios:
            told = ", ".join(f"{k} {v:.2f}x" for k, v in ratios.items() if k != "all")
            lines.append(f"{name} takes {ratios['all']:.2f}x as long ({told})")
    wrong = [row for row in document["rows"] if not row["ok"] and not row["refused"]]
    lines += [
        f"WRONG: {r['contender']} {r['test']} {spell_size(int(r['nbytes']))}: "
        f"{r['wrong']}"
        for r in wrong
    ]
    lines += _first_calls(document["rows"])
    floor = document["limits"]
    lines.append(
        f"all ranks copying at once: {floor['copy_gbps']:.1f} GB/s each; "
        f"barrier: {floor['barrier_us']:.2f} us"
        f"; hearing from all: {floor.get('flag_us', floor['barrier_us']):.2f} us"
    )
    return lines


def _first_calls(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the first call of a case took, by contender."""
    firsts: dict[str, list[float]] = {}
    for row in rows:
        if row.get("first_us") is not None:
            firsts.setdefault(str(row["contender"]), []).append(float(row["first_us"]))
    said = [
        f"{name} {_number(median(some))} us (most {_number(max(some))})"
        for name, some in firsts.items()
    ]
    return [f"first calls, the median of all cases: {', '.join(said)}"] * bool(said)


def _rich(
    head: Sequence[str],
    lines: Sequence[Sequence[str]],
    rows: Sequence[Mapping[str, Any]],
) -> str:
    from rich.console import Console
    from rich.table import Table

    grid = Table(header_style="bold", box=None, pad_edge=False)
    for at, name in enumerate(head):
        right = all(_numeric(line[at]) for line in lines)
        grid.add_column(name, justify="right" if right else "left", no_wrap=True)
    for line, row in zip(lines, rows, strict=True):
        style = "dim" if row["refused"] else None if row["ok"] else "bold red"
        grid.add_row(*line, style="bold" if row["contender"] == OURS else style)
    console = Console(width=_width((head, *lines)))
    with console.capture() as shown:
        console.print(grid, markup=False)
    return "\n".join(line.rstrip() for line in shown.get().splitlines())


def _numeric(cell: str) -> bool:
    return not cell or cell[0].isdigit()


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _many(value: float) -> str:
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"
