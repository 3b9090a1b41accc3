"""What NIXL's hop alone does, beside what every carrier must.

`test_libraries.py` runs it, in a process of its own.
"""

import os

import numpy as np
import pytest
from tests.pure.hop.ends import FIRST, joined, make, until

from stretto.errors import CommunicationError, RendezvousError
from stretto.fabric.hop.nixl import leaving

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def pair():
    with joined("nixl") as ends:
        yield ends


def test_who_does_not_know_the_secret_raises_no_word(pair):
    """Its notifications begin otherwise."""
    (memory, one), (_, other) = pair
    other._token = b"another" * 2 + b"!!"
    other.signal(0, 0, 64, 5, 128, (1, 2, 3))
    until(lambda: one.faults(), [one, other])

    assert not memory[64:128].any()


def test_another_backend_is_named():
    """With what to set alike."""
    _, way = make("nixl", 0)

    def said(**other):
        share = {**way.share(), **other}
        return [way.share(), {**share, "mac": way._mac(share)}]

    shares = said(backend="LIBFABRIC")
    with pytest.raises(RendezvousError, match="rank 1 is reached by nixl LIBFABRIC, "):
        way.connect(shares, [1], 1.0)
    why = r"rank 0 cannot reach rank 1 on .*NIXL's UCX: .*; set STRETTO_CARRIER and"
    with pytest.raises(RendezvousError, match=why):
        way.connect(said(agent="00"), [1], 1.0)
    shares[1] = way.share()
    with pytest.raises(RendezvousError, match="rank 0 cannot reach rank 1"):  # itself
        way.connect(shares, [1], 1.0)
    way.close()


def test_puts_of_nothing_take_no_room(pair):
    """However many."""
    (_, one), _ = pair
    nothing = np.zeros(8, np.uint8)
    for _ in range(300):
        assert one.put(1, 0, nothing.ctypes.data, FIRST, 0)
    assert not one.busy()


def test_at_the_end_of_a_process_nobody_calls_nixl_any_more(pair):
    """Its threads would abort it; what a child has from its parent is not its own."""
    (memory, one), (_, other) = pair
    data = np.ones(1 << 20, np.uint8)
    leaving._leave(os.getpid() + 1)
    assert other.put(0, 0, data.ctypes.data, FIRST, data.nbytes)
    assert other.signal(0, 0, 64, 1, 128, (0, 0, 0))
    until(lambda: memory[64] == 1, [one, other])
    other.put(0, 0, data.ctypes.data, FIRST, data.nbytes)
    leaving._leave(os.getpid())
    for peer, way in ((1, one), (0, other)):
        assert way._agent is None
        with pytest.raises(CommunicationError, match="its hop has been closed"):
            way.put(peer, 0, data.ctypes.data, FIRST, data.nbytes)
        assert 0 == way.progress() == way.busy()
