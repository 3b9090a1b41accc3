"""What Python shows of engines, transfers and weights: what it is, and of whom."""

from __future__ import annotations

import numpy as np

from stretto import weights
from stretto.transfer import Engine


def test_everything_that_a_guide_gives_says_what_it_is():
    """None is the name of a class and an address."""
    with Engine("shown-trainer") as trainer, Engine("shown-server") as server:
        trainer.share(trainer.arena(64), "box")
        peer = server.connect("shown-trainer").wait(10)
        sent = peer.region("box").wait(10)[:5].put(b"hello")
        late = peer.region("none")
        source = weights.publish(trainer, "policy", {"w": np.ones(4)})
        policy = weights.subscribe(server, "policy", into={"w": np.zeros(4)})
        push = source.push()
        policy.wait(timeout=30)
        sent.wait(5)
        every = [trainer, peer, server.peers, sent, late, source, policy, push]
        for one in [*every, peer["box"], peer["box"][:5], trainer.lease()]:
            assert " at 0x" not in repr(one), one
        assert "done" in repr(sent)
        assert "under way" in repr(late)
        late.cancel()
        assert "TransferCancelled" in repr(late)
        for one in (policy, source):
            one.close()
    assert "closed" in repr(trainer)
    assert "lost" in repr(peer)
