"""What is prepared once, and called by several threads at the same time."""

import threading
import uuid

import numpy as np
import pytest

from stretto.transfer import Engine

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 20
ROWS, ROUNDS, THREADS = 8192, 30, 3
LAYOUT = f"B={ROWS} X=64 uint32"


def wrong(call, there):
    """Return how often bytes were not there when a thread's call had returned."""
    bad = []

    def do(value):
        call()
        bad.extend([value] * (not (there == value).all()))

    for value in range(1, ROUNDS + 1):
        yield value
        threads = [threading.Thread(target=do, args=(value,)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not bad, f"{len(bad)} of {THREADS} calls returned too early"


@pytest.mark.parametrize("memory", ["arena", "private"])
@pytest.mark.parametrize("by", ["name", "address"])
def test_each_of_several_threads_moves_all_of_it(by, memory):
    """One's copy is not cut short by another's, whichever way the bytes go."""
    how = {"job": uuid.uuid4().hex, "secret": b"s" * 32}
    with (
        Engine("there", listen="127.0.0.1:0", **how) as there,
        Engine("here", **how) as here,
    ):
        theirs = np.zeros((ROWS, 64), np.uint32)
        if memory == "arena":
            theirs = there.arena(theirs.nbytes).view(np.uint32).reshape(theirs.shape)
        there.share(theirs, "kv", LAYOUT)
        ours = np.zeros_like(theirs)
        mine = here.share(ours, "ours", LAYOUT)
        peer = here.connect(there.name if by == "name" else there.address).wait(WAIT)
        view = peer.region("kv").wait(WAIT)[np.random.default_rng(1).permutation(ROWS)]
        put, get = view.prepare_put(mine), view.prepare_get(mine)
        for value in wrong(put, theirs):
            ours[:], theirs[:] = value, 0
        for value in wrong(get, ours):
            ours[:], theirs[:] = 0, value
