"""Write the profiles that the library ships from what was measured.

    python benchmarks/gpu_profile.py collectives.json [older.json ...]
        [--beside tune.json synth.json ...]

The rows of `gpu_collectives.py` become rules: for every collective, size and kind of
memory, the variant that was fastest. Tables of one machine and so many ranks make one
profile, named like the machine, `h200x4`; a row counts in the first that measured ours.
That of two ranks answers for two, as far as it was measured, and the others for all.

What a report of `stretto tune`, or of `gpu_synth.py`, has measured to be faster than
the table's choice beside it (`--beside`) takes its place.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from stretto.plan import Schedule  # noqa: E402

PROFILES = ROOT / "src" / "stretto" / "topology" / "profiles"
HEAD = """\
# What to use between the GPUs of one host, by the size of the full vector.
#
# Written by benchmarks/gpu_profile.py from measured rows: the fastest of all variants
# that were right. The first pin that works is taken: one that is not safe in place is
# passed over.
executor = "cuda"
about = "{about}"
"""


_BEYOND_NOISE = 0.99

Better = dict[tuple[str, int], tuple[str, set[str]]]
"""By collective and size: what was fastest, and what was measured beside it."""


def rules(document: dict[str, Any], better: Better) -> list[str]:
    """Return the rules of one machine."""
    ranks = "[2, 2]" if document["ranks"] == 2 else "[2, 8]"
    lines: list[str] = []
    for collective in dict.fromkeys(r["collective"] for r in document["rows"]):
        rows = sorted(
            (r for r in document["rows"] if r["collective"] == collective),
            key=lambda r: r["nbytes"],
        )
        for memory in ("staged", "zero_copy"):
            lines += ["", "[[rule]]", f'collective = "{collective}"']
            lines += [f'memory = "{memory}"', f"ranks = {ranks}", "sizes = ["]
            for i, row in enumerate(rows):
                last = i + 1 == len(rows)
                up_to = 1 << 40 if last else _between(row, rows[i + 1])
                pins = _pins(row, memory, better.get((collective, row["nbytes"])))
                lines += [f'  ["{up_to}", "{pin}"],' for pin in pins]
            lines.append("]")
    return lines


def merged(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one table: each row from the first that has a figure of ours."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    commits = []
    for document in documents:
        commits.append(document["commit"])
        for row in document["rows"]:
            key = row["collective"], row["nbytes"]
            if not rows.get(key, {}).get("sweep"):
                rows[key] = row
    return {**documents[0], "commit": ", ".join(commits), "rows": list(rows.values())}


def faster(document: dict[str, Any]) -> Better:
    """Return what a tuning, or a run of synthesised programs, found to be faster."""
    found: Better = {}
    for tuning in document.get("tunings", ()):
        for collective, sizes in tuning["decided"].items():
            for nbytes, one in sizes.items():
                beside = one["shipped_interval"]
                if beside and beside["high"] < 1:
                    than = {_plain(one["shipped"])}
                    found[collective, int(nbytes)] = one["pin"], than
    for row in document.get("rows", ()):
        ours = {
            _plain(name.removeprefix("shipped ")): statistics.median(us)
            for name, us in row["samples"].items()
            if name.startswith("shipped ")
        }
        best = min(ours, key=lambda pin: ours[pin])
        than = {p for p, us in ours.items() if ours[best] < _BEYOND_NOISE * us}
        found[row["collective"], row["nbytes"]] = best, than
    return found


def _plain(variant: str) -> str:
    """Return the one spelling of a pin."""
    name, _, words = variant.replace("|", " ").partition(" ")
    return f"{name} {Schedule.parse(words)}"


def _between(row: dict[str, Any], other: dict[str, Any]) -> int:
    """Return the size between two that were measured, on a logarithmic scale."""
    return round(math.sqrt(row["nbytes"] * other["nbytes"]))


def _pins(
    row: dict[str, Any], memory: str, better: tuple[str, set[str]] | None
) -> list[str]:
    """Return the fastest variant, and the fastest that is safe for every call."""
    ranked = sorted(row["sweep"], key=lambda s: s["us"])
    finals = [k for k in row["samples"] if k.startswith("ours ")]
    best = [row["ours"]] if finals and "ours" in row else []
    order = [*best, *(s["variant"] for s in ranked)]
    if better and order and _plain(order[0]) in better[1]:
        order = [better[0], *order]
    staged = next((v for v in order if "zero_copy" not in v), None)
    found = [order[0]] if memory == "zero_copy" and order else []
    found += [staged] if staged is not None and staged not in found else []
    return [v.replace("|", " ") for v in found]


def main() -> None:
    """Write the profiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="the newest first")
    parser.add_argument("--beside", nargs="*", default=[], type=Path)
    args = parser.parse_args()
    tables = [json.loads(path.read_text()) for path in args.tables]
    better: Better = {}
    for path in args.beside:
        better |= faster(json.loads(path.read_text()))
    for n in sorted({table["ranks"] for table in tables}):
        document = merged([table for table in tables if table["ranks"] == n])
        gpu = document["machine"]["gpu"]
        about = f"{gpu}, {n} ranks, commits {document['commit']}"
        path = PROFILES / f"{gpu.split()[-1].lower()}x{n}.toml"
        lines = rules(document, better if n == 4 else {})
        path.write_text(HEAD.format(about=about) + "\n".join(lines) + "\n")
        print(f"{len(lines)} lines in {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
