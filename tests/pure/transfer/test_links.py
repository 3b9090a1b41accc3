"""One end of a link whose other end has gone."""

import threading

import pytest
from tests.pure.hop.ends import until

from stretto import hop
from stretto.transfer import loader
from stretto.transfer.links.link import Link
from stretto.transfer.links.words import HALF_BYTES, RING
from stretto.transfer.memory.mapping import Shared


def end(rank):
    """Return memory, and a hop over it, as an engine has them for a far peer."""
    shared = Shared(2 * HALF_BYTES)
    window = hop.Window(
        rank=rank, num_ranks=2, address=shared.address, puts=(RING, HALF_BYTES),
        words=(0, HALF_BYTES + RING), secret=b"s" * 32,
    )  # fmt: skip
    return shared, hop.get("tcp").open_hop(window, compiled=True)


@pytest.mark.skipif(bool(loader.missing()), reason="no Numba")
def test_room_is_given_back_to_nobody_once_the_peer_has_gone():
    """What a dead peer said is still taken; nobody waits until it reads an answer."""
    loader.load()
    (shared, here), (_, there) = ends = [end(rank) for rank in (0, 1)]
    shares = [way.share() for _, way in ends]
    other = threading.Thread(target=there.connect, args=(shares, [0], 5.0))
    other.start()
    here.connect(shares, [1], 5.0)
    other.join()
    link = Link(shared, is_first=True, hop=here)
    link.give_back(0, 64)
    there.close()
    until(lambda: here.has_ended, [here])

    giving = threading.Thread(target=link.give_back, args=(64, 64), daemon=True)
    giving.start()
    giving.join(5)
    was_over = not giving.is_alive()
    link.gone[0] = 1
    giving.join(5)
    link.close()

    assert was_over
