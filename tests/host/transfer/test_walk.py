"""A put's walk through the modules is short: the guide on transfers draws it."""

import numpy as np
import pytest
from tests.host.transfer.conftest import SECRET
from tests.waiting import until
from tests.walks import TRANSFERS, returns, walk_of

from stretto.transfer import Engine

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 30


@pytest.mark.parametrize(
    ("way", "first", "again"),
    [("arena", 12, 11), ("memory", 12, 11), ("view", 10, 9)],
)
def test_a_put_returns_to_few_modules_that_it_has_left(engine, way, first, again):
    """It was 66 times, 40 from the second on, and a prepared one looked around, too."""
    here = engine.arena(4096)
    with Engine(f"near-{engine.name}", secret=SECRET) as there:
        for nbytes in (64, 80):  # the first put of all loads the compiled functions
            memory = (
                there.arena(nbytes) if way == "arena" else np.zeros(nbytes, np.uint8)
            )
            there.share(memory, f"{nbytes}")
        peer = engine.connect(there.name).wait(WAIT)
        peer.region("64").wait(WAIT).put(here[:64]).wait(WAIT)
        region, source = peer.region("80").wait(WAIT), here[:80]
        if way == "view":
            source = engine.share(source, "source").view
        held = []

        def put():
            held.append(region.put(source))
            held[-1].wait(WAIT)

        walks = [walk_of(put, TRANSFERS) for _ in range(2)]
        prepared = region.view.prepare_put(source)
        prepared()
        known = walk_of(prepared, TRANSFERS)

    assert 0 < returns(walks[0]) <= first, walks[0]
    assert returns(walks[1]) <= again, walks[1]
    assert 0 == returns(known), known


def test_a_prepared_put_to_a_far_peer_returns_nowhere(engine):
    """One compiled call asks, and hears the answer."""
    source = np.ones(64, np.uint8)
    with Engine(f"far-{engine.name}", secret=SECRET, listen="127.0.0.1:0") as there:
        there.share(np.zeros(64, np.uint8), "buf")
        peer = engine.connect(there.address).wait(WAIT)
        prepared = peer.region("buf").wait(WAIT).view.prepare_put(source)
        walks = []

        def is_short():  # whoever finds that it takes longer looks around meanwhile
            walks.append(walk_of(prepared, TRANSFERS))
            return not returns(walks[-1])

        until(is_short)
