"""A hop over TCP that has ended takes nothing more, and has nothing left to send."""

import numpy as np
import pytest
from tests.pure.hop.test_tcp import FIRST, join, make, until

from stretto import hop

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=[(True, True), (True, False), (False, False)], ids=str)
def pair(request):
    """Two connected ranks: compiled, of both kinds, in pure Python."""
    ends = [make(r, compiled=c, lanes=2) for r, c in enumerate(request.param)]
    assert [None, None] == join([way for _, way in ends])
    yield ends
    for _, way in ends:
        way.close()


@pytest.mark.parametrize("how", ["hangs up", "closed here", "nonsense"])
@pytest.mark.parametrize("nbytes", [8, 8193, 1 << 20])
@pytest.mark.parametrize("lane", [0, 1, hop.MORE, 1 + hop.MORE])
def test_after_its_end_nothing_is_taken_and_nobody_is_busy(pair, how, nbytes, lane):
    """Neither a put nor a signal, whoever ended it; and nothing waits to be sent."""
    (_, a), (_, b) = pair
    data = np.zeros(nbytes, np.uint8)
    if how == "closed here":
        assert a.put(1, lane, data.ctypes.data, FIRST, nbytes)
        a.close()
    elif how == "hangs up":
        b.close()
    else:
        for sock in b._sockets.values():
            sock.setblocking(True)
            sock.sendall(b"\x07" * 64)
    ways = [] if how == "closed here" else [a]
    until(lambda: 1 in a.faults() and a.has_ended, *ways)
    until(lambda: _is_refused(a, lane, data), *ways)

    assert not a.put(1, lane, data.ctypes.data, FIRST, nbytes)
    assert not a.signal(1, lane, 0, 1, 8, (0, 0, 0))
    assert not a.busy()
    assert 0 == a.progress()


def _is_refused(way, lane, data):
    return not way.put(1, lane, data.ctypes.data, FIRST, len(data))
