"""Write the profiles that the library ships from what was measured.

    python benchmarks/gpu_profile.py collectives.json [more.json ...]

The rows of `gpu_collectives.py` become rules: for every collective, size and kind of
memory, the variant that was fastest. Each file of rows becomes one profile, named like
the machine, `h200x4`: that of two ranks answers for two, others for three to eight.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
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


def rules(document: dict[str, Any]) -> list[str]:
    """Return the rules of one file."""
    n = document["ranks"]
    ranks = "[2, 2]" if n == 2 else "[3, 8]"
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
                lines += [f'  ["{up_to}", "{pin}"],' for pin in _pins(row, memory)]
            lines.append("]")
    return lines


def _between(row: dict[str, Any], other: dict[str, Any]) -> int:
    """Return the size between two that were measured, on a logarithmic scale."""
    return round((row["nbytes"] * other["nbytes"]) ** 0.5)


def _pins(row: dict[str, Any], memory: str) -> list[str]:
    """Return the fastest variant, and the fastest that is safe for every call."""
    ranked = sorted(row["sweep"], key=lambda s: s["us"])
    finals = [k for k in row["samples"] if k.startswith("ours ")]
    best = [row["ours"]] if finals and "ours" in row else []
    order = [*best, *(s["variant"] for s in ranked)]
    staged = next((v for v in order if "zero_copy" not in v), None)
    found = [order[0]] if memory == "zero_copy" and order else []
    found += [staged] if staged is not None and staged not in found else []
    return [v.replace("|", " ") for v in found]


def main() -> None:
    """Write the profiles."""
    for name in sys.argv[1:]:
        document = json.loads(Path(name).read_text())
        gpu, n = document["machine"]["gpu"], document["ranks"]
        about = f"{gpu}, {n} ranks, commit {document['commit']}"
        path = PROFILES / f"{gpu.split()[-1].lower()}x{n}.toml"
        lines = rules(document)
        path.write_text(HEAD.format(about=about) + "\n".join(lines) + "\n")
        print(f"{len(lines)} lines in {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
