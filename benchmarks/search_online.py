"""Many knobs of which few matter: accumulated cost beside exact slopes and SPSA.

python benchmarks/search_online.py [SEEDS]
"""

import sys

import numpy as np

from stretto.search.problems.online import accumulated


def main() -> None:
    """Print a line for each setting."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    for moving in (False, True):
        print(
            f"five knobs matter, {'others each round' if moving else 'the same ones'}"
        )
        for knobs in (50, 100):
            for noise, reach in ((0.0, 0.01), (0.001, 0.1)):
                found = {
                    method: np.mean([
                        accumulated(
                            knobs, 5, method, seed, noise=noise, reach=reach,
                            moving=moving,
                        )
                        for seed in range(seeds)
                    ])
                    for method in ("exact", "sparse", "spsa")
                }  # fmt: skip
                off = {m: cost / found["exact"] - 1 for m, cost in found.items()}
                said = ", ".join(
                    f"{m} {cost:.2f} ({off[m]:+.1%})" for m, cost in found.items()
                )
                print(f"  {knobs} knobs, noise {noise}: {said}", flush=True)


if __name__ == "__main__":
    main()
