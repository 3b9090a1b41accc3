"""Two ends of a hop by a carrier, as memory and hop: those of `stretto.testing`."""

import contextlib
from types import SimpleNamespace

from stretto.fabric import hop
from stretto.testing import ends
from stretto.testing.ends import FIRST, SIZE

__all__ = ["FIRST", "SIZE", "join", "joined", "make", "until"]


def make(carrier, rank, **how):
    """Return memory, and a hop by a carrier whose window it is."""
    end = ends.CarrierEnd(hop.get(carrier), rank, **how)
    return end.memory, end.hop


def join(ways):
    """Connect two with one another; return what each raised, in words."""
    return ends.connect([SimpleNamespace(hop=way) for way in ways])


@contextlib.contextmanager
def joined(carrier, **how):
    """Yield two ends that are connected."""
    with ends.joined(hop.get(carrier), **how) as pair:
        yield [(end.memory, end.hop) for end in pair.both]


def until(done, ways):
    """Let all progress until something is so."""
    ends.until(done, *(SimpleNamespace(hop=way) for way in ways))
