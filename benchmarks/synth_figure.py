"""Draw the figure of synthesis: two NDv2, 1 KB to 1 GB, times over the bound.

Curves: the lower bound, a ring, TACCL and TE-CCL as published, and what is found here.
TE-CCL's schedules for this machine serve 15 of its 16 GPUs (one is taken for a switch),
so they may lie below a bound that is for all 16. Run from the repository:
`python benchmarks/synth_figure.py --out benchmarks/results/synth_figure_202611`.
"""

from __future__ import annotations

import argparse
import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from stretto import topology  # noqa: E402
from stretto.bench.machine import commit  # noqa: E402
from stretto.synth import Budget, bound, from_machine, synthesize  # noqa: E402

PUBLISHED = {  # us, by size, from the TE-CCL repository; TACCL as rerun there
    "all_gather": {
        "TACCL": [
            10.16,
            11.85,
            12.68,
            13.08,
            25.26,
            62.15,
            216.5,
            None,
            3133.2,
            12494.6,
            53766.7,
        ],
        "TE-CCL (15 GPUs)": [
            4.14,
            4.18,
            4.44,
            6.08,
            14.72,
            48.75,
            190,
            700,
            2800,
            11200,
            43750,
        ],
    },
    "all_to_all": {
        "TACCL": [
            36.8,
            32.1,
            35.8,
            50.3,
            115.7,
            359.0,
            1324,
            5164,
            20532,
            81964,
            320049,
        ],
        "TE-CCL (15 GPUs)": [
            4.24,
            4.60,
            7.94,
            21.68,
            77.12,
            290,
            1155,
            4540,
            18160,
            72640,
            283750,
        ],
    },
}
SIZES = [1000 * 4**i for i in range(5)] + [10**6 * 4**i for i in range(5)] + [10**9]


def ring_us(collective: str, nbytes: int) -> float:
    """Return a ring's time: every step waits for the slowest link, the NIC."""
    chunk_mb = Fraction(nbytes, 16 * 10**6)
    if collective == "all_gather":
        return float(15 * (Fraction(13, 10) + 80 * chunk_mb))
    steps = sum(Fraction(13, 10) + 80 * chunk_mb * left for left in range(1, 16))
    return float(steps)  # every step passes on what has further to go


def main() -> None:
    """Compute, then write JSON, SVG and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="without a suffix")
    parser.add_argument("--budget", type=float, default=4.0)
    args = parser.parse_args()
    network = from_machine(topology.load("ndv2x2"))
    rows: list[dict[str, Any]] = []
    for collective, peers in PUBLISHED.items():
        limit = bound(collective, network)
        for i, size in enumerate(SIZES):
            small = size <= 10**6 and collective == "all_gather"
            budget = Budget(seconds=args.budget if small else 0)
            found = synthesize(collective, network, size, budget=budget)
            row = {
                "collective": collective,
                "size": size,
                "bound": float(limit.us(size)),
                "ring": ring_us(collective, size),
                **{peer: times[i] for peer, times in peers.items()},
                "stretto": float(found.us),
                "generator": found.schedule.generator,
                "split": found.schedule.demand.split,
            }
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    write(args.out, rows)


NAMES = ("bound", "ring", "TACCL", "TE-CCL (15 GPUs)", "stretto")
STYLES = {
    "bound": ("black", "--"),
    "ring": ("tab:gray", ":"),
    "TACCL": ("tab:orange", "-"),
    "TE-CCL (15 GPUs)": ("tab:blue", "-"),
    "stretto": ("tab:red", "-"),
}


def write(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write the three files."""
    document = {
        "command": " ".join(["python", "benchmarks/synth_figure.py", *sys.argv[1:]]),
        "commit": commit(),
        "machine": "ndv2x2 (TE-CCL's constants), modelled, not measured",
        "published": "microsoft/TE-CCL result files; TACCL as rerun there",
        "rows": rows,
    }
    out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    lines = [
        "# Two NDv2: synthesis against the bound and published schedules",
        "",
        (
            f"`{document['command']}` at {document['commit']}."
            " Link model, us; output bytes."
        ),
        f"Published: {document['published']}. TE-CCL's serve 15 of the 16 GPUs.",
        "",
        "| collective | size | " + " | ".join(NAMES) + " | found by |",
        "|---|---|" + "---|" * (len(NAMES) + 1),
    ]
    for r in rows:
        cells = [f"{r[n]:.6g}" if r[n] else "-" for n in NAMES]
        lines.append(
            f"| {r['collective']} | {r['size']} | {' | '.join(cells)}"
            f" | {r['generator']}, split {r['split']} |"
        )
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    draw(out, rows)


def draw(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write the figure: times over the bound, by size."""
    mpl.rcParams["svg.hashsalt"] = "stretto"
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharex=True)
    for axis, collective in zip(axes, PUBLISHED, strict=True):
        chosen = [r for r in rows if r["collective"] == collective]
        for name, (color, line) in STYLES.items():
            points = [(r["size"], r[name] / r["bound"]) for r in chosen if r[name]]
            axis.plot(
                *zip(*points, strict=True),
                label=name,
                color=color,
                linestyle=line,
                marker="" if name in ("bound", "ring") else "o",
                markersize=3,
            )
        axis.set(
            xscale="log",
            yscale="log",
            title=f"{collective}, 2x NDv2, modelled",
            xlabel="bytes",
            ylabel="time / lower bound (16 GPUs)",
        )
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(out.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
