"""Two ends of a hop by a carrier, in one process: what checks of carriers share."""

import contextlib
import time

import numpy as np

from stretto import hop

FIRST, SIZE = 4096, 1 << 22


def make(carrier, rank):
    """Return memory, and a hop by a carrier whose window it is."""
    memory = np.zeros(SIZE, dtype=np.uint8)
    window = hop.Window(
        rank=rank, num_ranks=2, address=memory.ctypes.data, puts=(FIRST, SIZE),
        words=(0, FIRST), secret=b"s" * 32,
    )  # fmt: skip
    return memory, hop.get(carrier).open_hop(window)


@contextlib.contextmanager
def joined(carrier):
    """Yield two ends that are connected."""
    ends = [make(carrier, rank) for rank in (0, 1)]
    shares = [way.share() for _, way in ends]
    for rank, (_, way) in enumerate(ends):
        way.connect(shares, [1 - rank], 5.0)
    yield ends
    for _, way in ends:
        way.close()


def until(done, ways, within_s=20.0):
    """Let all progress until something is so."""
    stop_at = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < stop_at, "it does not come"
        for way in ways:
            way.progress()
