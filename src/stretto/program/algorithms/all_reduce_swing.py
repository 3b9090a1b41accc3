"""Swing: recursive halving whose partners swing to and fro, near on a torus."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, power_of_two


@algorithm("all_reduce/swing", requires=power_of_two)
def swing(ranks: Ranks) -> None:
    """Partners at 1, -1, 3, -5, 11, ...: what a partner will need is sent to it."""
    n = len(ranks)
    steps = n.bit_length() - 1
    needs = [[{r} for r in range(n)]]
    for step in reversed(range(steps)):
        later = needs[0]
        needs.insert(0, [later[r] | later[swung(r, step, n)] for r in range(n)])
    for r in ranks:
        r.output[:] = r.input[:]
    for step in range(steps):
        for r in ranks:
            q = ranks[swung(r, step, n)]
            for c in sorted(needs[step + 1][r]):
                r.scratch("swap", n)[c] = q.output[c]
        for r in ranks:
            for c in sorted(needs[step + 1][r]):
                r.output[c] += r.scratch("swap", n)[c]
    for step in reversed(range(steps)):
        for r in ranks:
            q = ranks[swung(r, step, n)]
            for c in sorted(needs[step + 1][q]):
                r.output[c] = q.output[c]


def swung(r: int, step: int, n: int) -> int:
    """Return the partner of rank r at a step."""
    distance = (1 - (-2) ** (step + 1)) // 3
    return int(r - distance if r % 2 else r + distance) % n
