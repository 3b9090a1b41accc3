"""all_gather for h200x4, found by synthesis.

For 67108864 bytes on h200x4: 129.616 us in the
link model; bound 129.616 us, gap 0.00%.
Generator: greedy seed=0; split 1,
seed 0, budget 0 s.
"""

from stretto.lang import Ranks, algorithm

N, K = 4, 1
IMAGES = range(0, 4, 1)


def image(rank: int, turn: int) -> int:
    """Return where a rank goes when all move on by `turn`."""
    return (rank + turn) % N


MOVES = (  # whose, which piece, from, to; by planned start
    (0, 0, 0, 1),
    (0, 0, 0, 2),
    (0, 0, 0, 3),
)


def only_here(n: int) -> str | None:
    """Return why another number of ranks is not served."""
    return None if n == N else f"made for {N} ranks, not {n}"


@algorithm("all_gather/h200x4_64m", split=K, requires=only_here)
def h200x4_64m(ranks: Ranks) -> None:
    """Follow the table and its images."""
    for r in ranks:
        r.output[r * K : r * K + K] = r.input[:]
    for owner_, piece, src_, dst_ in MOVES:
        for turn in IMAGES:
            owner = ranks[image(owner_, turn)]
            src = ranks[image(src_, turn)]
            dst = ranks[image(dst_, turn)]
            own = src == owner
            at = owner * K + piece
            dst.output[at] = src.input[piece] if own else src.output[at]
