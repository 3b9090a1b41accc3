"""Double binary tree: two trees, each with half of the vector."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, reduce


@algorithm("all_reduce/double_binary_tree")
def double_binary_tree(ranks: Ranks) -> None:
    """Sum up each tree, then send down; a leaf of one is inside the other."""
    n = len(ranks)
    half = (n * (len(ranks[0].output) // n) + 1) // 2
    whole = len(ranks[0].output)
    for shift, lo, hi in ((0, 0, half), (1, half, whole)):
        if lo == hi:
            continue
        up, down = tree(1, n + 1)
        for label, children in up:
            r = ranks[label - 1 + shift]
            below = [ranks[child - 1 + shift].output[lo:hi] for child in children]
            r.output[lo:hi] = reduce(r.input[lo:hi], *below)
        for label, child in down:
            r, q = ranks[label - 1 + shift], ranks[child - 1 + shift]
            q.output[lo:hi] = r.output[lo:hi]


def tree(lo: int, hi: int) -> tuple[list[tuple[int, list[int]]], list[tuple[int, int]]]:
    """Return (node, children) from the leaves up, and (node, child) from the root down.

    Labels lo to hi - 1 in order: the root is the one divisible by the largest power of
    two, so odd labels are leaves; shifted by one rank, even ones are.
    """
    if lo >= hi:
        return [], []
    root = max(range(lo, hi), key=lambda label: label & -label)
    up: list[tuple[int, list[int]]] = []
    down: list[tuple[int, int]] = []
    children = []
    for a, b in ((lo, root), (root + 1, hi)):
        below_up, below_down = tree(a, b)
        if below_up:
            child = below_up[-1][0]
            children.append(child)
            up += below_up
            down += [(root, child), *below_down]
    return [*up, (root, children)], down
