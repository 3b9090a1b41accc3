"""Gaps of programs that were found before to the bounds of now: nothing is searched.

Reads a table of `synth_altered.py`, bounds every row's machine again, and prints what
that makes of the gaps:

    python benchmarks/synth_rebound.py benchmarks/results/synth_altered_64k_202611
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from altered_machines import altered  # noqa: E402
from synth_altered import load  # noqa: E402

from stretto.synth import bound, from_machine  # noqa: E402

_FAR = 0.25


def main() -> None:
    """Print a line for every collective: gaps as they were, and as they are."""
    cases, rows = list(altered()), load(Path(sys.argv[1])).values()
    print("| collective | rows | gaps as they were: median, worst | to bounds of now |")
    print("| --- | --- | --- | --- |")
    for collective in sorted({r["collective"] for r in rows}):
        before, after = [], []
        for r in rows:
            if r["collective"] != collective or "gap" not in r:
                continue
            case = cases[r["case"]]
            network = from_machine(case["machine"])
            if case["group"]:
                network = network.group(case["group"], relays=case["relays"])
            least = float(bound(collective, network).us(r["nbytes"]))
            before.append(r["gap"])
            after.append(r["us"] / max(least, r["independent_us"]) - 1)
        said = [_said(gaps) for gaps in (before, after)]
        print(f"| {collective} | {len(before)} | {said[0]} | {said[1]} |")


def _said(gaps: list[float]) -> str:
    far = sum(1 for g in gaps if g > _FAR)
    return f"{median(gaps):.2%}, {max(gaps):.1%}, {far} above {_FAR:.0%}"


if __name__ == "__main__":
    main()
