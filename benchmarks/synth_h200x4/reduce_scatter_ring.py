"""reduce_scatter for h200x4, found by synthesis.

For 67108864 bytes on h200x4: 130.736 us in the
link model; bound 129.616 us, gap 0.86%.
Generator: greedy seed=0, backwards; split 1,
seed 0, budget 0 s.
"""

from stretto.lang import Rank, Ranks, Reference, algorithm, reduce

N, K = 4, 1
IMAGES = range(0, 4, 1)


def image(rank: int, turn: int) -> int:
    """Return where a rank goes when all move on by `turn`."""
    return (rank + turn) % N


SUMS = (  # whose, which piece, who adds, (from, slot of its sum or -1)..., own slot
    (0, 0, 2, ((1, -1),), 0),
    (0, 0, 3, ((2, 0),), 1),
    (0, 0, 0, ((3, 1),), -1),
)


def only_here(n: int) -> str | None:
    """Return why another number of ranks is not served."""
    return None if n == N else f"made for {N} ranks, not {n}"


@algorithm("reduce_scatter/h200x4_64m", split=K, requires=only_here)
def h200x4_64m(ranks: Ranks) -> None:
    """Follow the table and its images."""

    def held(rank: Rank, at: int, slot: int) -> Reference:
        if slot < 0:
            return rank.input[at]
        return rank.scratch("sums", 2)[slot]

    for owner_, piece, dst_, parts, slot in SUMS:
        for turn in IMAGES:
            owner = ranks[image(owner_, turn)]
            dst = ranks[image(dst_, turn)]
            at = owner * K + piece
            others = [(ranks[image(q, turn)], s) for q, s in parts]
            terms = [held(r, at, s) for r, s in others]
            total = reduce(dst.input[at], terms)
            if slot < 0:
                dst.output[piece] = total
            else:
                dst.scratch("sums", 2)[slot] = total
