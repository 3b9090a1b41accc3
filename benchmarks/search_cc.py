"""Search a congestion control with and without proofs in what it is searched for.

    python benchmarks/search_cc.py [--evals 400] [--seeds 3]

C3's question: how much more of what a controller promises is proved when proofs count,
and what that costs in throughput. Figures are of scenes that nobody searched on.
"""

from __future__ import annotations

import argparse
import statistics

from stretto.search import evolve, problem


def main() -> None:
    """Print a line for each search, and the two means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evals", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    means = {}
    for certify in (0.0, 0.2):
        made = problem("cc", certify=certify)
        rows = []
        for seed in range(1, given.seeds + 1):
            found = evolve(made, evals=given.evals, seed=seed)
            # without the net that falls back on Cubic: the policy as it is
            bare = made.figures(
                made.parse(found.text), range(1000, 1018), 1500.0, spared=False
            )
            row = dict(found.held_out) | {"bare_used": bare["used"]}
            rows.append(row)
            said = ", ".join(f"{k} {v:.4f}" for k, v in row.items())
            print(
                f"certify {certify:g}, seed {seed}: {found.text}\n  {said}", flush=True
            )
            if certify == 0 and seed == 1:
                said = ", ".join(f"{k} {v:.4f}" for k, v in found.first.items())
                print(f"  Cubic alone: {said}")
        means[certify] = {k: statistics.mean(r[k] for r in rows) for k in rows[0]}
    free, proved = means.values()
    print(
        f"proved {free['certified']:.3f} -> {proved['certified']:.3f}, "
        f"{proved['certified'] / max(1e-9, free['certified']):.2f}x; links used "
        f"{free['used']:.4f} -> {proved['used']:.4f} "
        f"({proved['used'] / free['used'] - 1:+.2%}); lack "
        f"{free['lack']:.4f} -> {proved['lack']:.4f}"
    )


if __name__ == "__main__":
    main()
