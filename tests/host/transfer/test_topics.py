"""What rooms above say to one another by engines that are connected."""

import os
import threading

import numpy as np
import pytest
from tests.waiting import until

from stretto.errors import CallError
from stretto.transfer import Engine

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


class Follower:
    """Writes down what it is told."""

    def __init__(self):
        self.told = []

    def came(self, peer):
        self.told.append(("came", peer.name))

    def heard(self, peer, body):
        self.told.append(("heard", peer.name, body["nth"]))

    def lost(self, peer):
        self.told.append(("lost", peer.name))


@pytest.mark.parametrize("far", [False, True])
def test_a_follower_hears_of_a_peer_what_it_sends_and_its_end(start, engine, far):
    """In that order, on one host and over the network; other topics are not heard."""
    follower = Follower()
    engine.follow("ours", follower)
    child = start(listen=far)
    there = engine.connect(child.address).wait(20)
    for nth in range(3):
        child.ask("send", peer=engine.name, topic="ours", body={"nth": nth})
        child.ask("send", peer=engine.name, topic="theirs", body={"nth": 9})
    until(lambda: len(follower.told) == 4)
    child.end()
    until(lambda: there.lost and len(follower.told) == 5)

    name = there.name
    heard = [("heard", name, nth) for nth in range(3)]
    assert [("came", name), *heard, ("lost", name)] == follower.told


def test_who_follows_late_is_told_of_peers_that_are_there(start, engine):
    """And of each once; a topic has one follower."""
    child = start()
    there = engine.connect(child.address).wait(20)
    follower = Follower()
    engine.follow("ours", follower)
    until(lambda: follower.told)
    with pytest.raises(CallError, match="'ours' is followed already"):
        engine.follow("ours", Follower())
    engine.unfollow("ours")
    engine.follow("ours", Follower())

    assert [("came", there.name)] == follower.told


def test_a_follower_that_raises_costs_that_connection_only(start, engine):
    """What a peer sends makes no sense to it: that peer is lost, and says why."""
    follower = Follower()
    engine.follow("ours", follower)
    one, other = start(), start()
    there, second = (engine.connect(c.address).wait(20) for c in (one, other))
    one.ask("send", peer=engine.name, topic="ours", body={})
    until(lambda: there.lost)

    assert "makes no sense" in there.lost
    assert not second.lost


def test_more_is_shared_than_a_socket_takes(start, engine):
    """A peer hears of all of it, though it says nothing itself meanwhile."""
    arrays = [np.zeros(8, np.uint8) for _ in range(3000)]
    for nth, array in enumerate(arrays):
        engine.share(array, f"memory-{nth}")
    child = start()
    engine.connect(child.address).wait(20)
    names = child.ask("names", peer=engine.name, last="memory-2999")

    assert len(arrays) == names


def test_who_closes_has_said_all_that_it_was_told_to(start, engine):
    """More than the connection has room for, to a peer that is slow to hear it."""
    follower = Follower()
    engine.follow("ours", follower)
    child = start()
    there = engine.connect(child.address).wait(20)
    with Engine(f"says-{os.getpid()}", job=engine.job) as says:
        slow, hear = threading.Event(), follower.heard

        def heard(peer, body):
            slow.wait(0.3)
            hear(peer, body)

        follower.heard = heard
        to = says.connect(engine.name).wait(20)
        for nth in range(4000):
            to.send("ours", {"nth": nth, "more": "x" * 200})
            if to._connection.is_sending:
                break
        else:
            pytest.fail("the connection takes everything")
        to.send("ours", {"nth": -1})
        slow.set()
    name = to.engine.name
    until(lambda: ("lost", name) in follower.told)

    said = [nth for kind, who, *rest in follower.told if who == name for nth in rest]
    assert [*range(nth + 1), -1] == said
    assert not there.lost
