"""What a peer said before it ended is heard, whatever else is told of its end."""

import contextlib
import time

import numpy as np
import pytest

from stretto.errors import EngineLost

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 20


@pytest.mark.parametrize(
    ("is_far", "how"),
    [(False, "say_and_close"), (False, "say_and_end"), (True, "say_and_close")],
)
def test_what_was_said_is_heard(engine, start, is_far, how):
    """However late we look, and while we send. A far process takes its words along."""
    child = start(listen=is_far)
    peer = engine.connect(child.address).wait(WAIT)
    child.ask("share", name="buf", nbytes=64 << 20, arena=True)
    data = np.ones(32 << 20, np.uint8)
    buf = peer.region("buf").wait(WAIT)[: data.size]
    moves = [buf.put(data) for _ in range(2)]
    engine.loop.at(0.0, lambda: time.sleep(0.5))
    child.tell(how, peer=engine.name, tag="last words", count=900)
    engine.notified(b"last words", 900).wait(WAIT)
    for move in moves:
        with contextlib.suppress(EngineLost):
            move.wait(WAIT)
    with pytest.raises(EngineLost):
        peer.region("never").wait(WAIT)
