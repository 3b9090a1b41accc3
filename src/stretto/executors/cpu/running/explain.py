"""What steps are that the interpreter writes as places in a call's table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.compiler.plan import Plan, Signal, primitive
from stretto.executors.cpu.words import Code, Header
from stretto.trace import EXPLAINED, NOBODY, STEP_KINDS

_FAR = {Code.PUT: "hop_put", Code.RAISE: "hop_signal"}


def explained(plan: Plan, rank: int, table: NDArray[np.int64]) -> NDArray[Any]:
    """Return what is at each word of a call's table: of those where a step begins."""
    found = np.zeros(len(table), EXPLAINED)
    base = int(table.ctypes.data)
    first = (int(table[Header.LANES]) - base) // 8
    tile_bytes = int(table[Header.TILE_BYTES])
    for lane in range(int(table[Header.NUM_LANES])):
        steps = plan.ranks[rank][lane]
        signals = (i for i, step in enumerate(steps) if isinstance(step, Signal))
        at = (int(table[first + 2 * lane]) - base) // 8
        while table[at] != Code.END:
            words = table[at : at + 12].tolist()
            index, peer, nbytes = _said(words, table, at, rank)
            if words[0] in (Code.SIGNAL, Code.RAISE):
                index = next(signals)
                peer = steps[index].rank  # type: ignore[union-attr]
            kind = _FAR.get(words[0]) or primitive(rank, steps[index]).value
            found[at] = STEP_KINDS.index(kind), index, peer, nbytes, tile_bytes
            at = (words[1] - base) // 8
    return found


def _said(
    words: list[int], table: NDArray[np.int64], at: int, rank: int
) -> tuple[int, int, int]:
    """Return an instruction's step, peer and bytes, as far as it says them."""
    match words[0]:
        case Code.MOVE:
            ends = range(at + 9, at + 9 + 3 * (words[5] + words[6]), 3)
            peers = {int(table[i + 2]) for i in ends} - {rank}
            peer = peers.pop() if len(peers) == 1 else NOBODY
            return words[7], peer, words[4]
        case Code.WAIT:
            return words[5], words[4], 0
        case Code.PUT:
            return words[11], words[2], words[10]
        case Code.CROSS:
            return words[8], words[9], words[7]
    return NOBODY, NOBODY, 0
