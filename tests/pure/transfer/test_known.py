"""Two engines become peers once, whoever goes to whom, whatever is heard first."""

import itertools
import random
import types
from functools import partial

import pytest

from stretto.errors import CallError, RendezvousError
from stretto.transfer.engine.known import PeerTable, hand_out
from stretto.transfer.ways.pending import Pending

LOOP = types.SimpleNamespace(check=bool)
"""Nothing of it is needed here."""


class NoLock:
    """Everything here happens in one thread."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return


class Peer:
    """The end of a connection that both have agreed on."""

    def __init__(self, side, other, meeting):
        self.side, self.name, self.identity, self.meeting = side, other, other, meeting
        self.lost, self.ready = "", Pending(LOOP, "ready")
        self.whereabouts = "here"

    def lose(self, why):
        if not self.lost:
            self.lost = why
            self.side.known.drop(self)
            self.ready.fail(self.error())

    def error(self):
        return RendezvousError(self.lost)


class Talk:
    """One end of a connection, as `engine.meet` drives it; what it says is queued."""

    def __init__(self, world, side, other, *, is_comer, meeting=""):
        self.world, self.side, self.other = world, side, other
        self.is_comer, self.meeting, self.is_over = is_comer, meeting, False
        self.peer, self.back, self.found = None, None, None

    def end(self, why):
        self.leave(RendezvousError(why))

    def leave(self, error):
        if not self.is_over:
            self.is_over = True
            self.side.known.left(self, self.other, error)
            self.say("over")

    def say(self, what, **said):
        self.world.queue(self.back, {"say": what, **said})

    def become(self):
        self.is_over = True
        self.peer = Peer(self.side, self.other, self.meeting)
        self.side.known.welcome(self.peer)
        self.peer.ready.finish(None)

    def hear(self, said):
        known = self.side.known
        if said["say"] == "over":
            if self.peer is not None:
                self.peer.lose("it hung up")
            self.end("it hung up")
        elif self.is_over:
            return
        elif said["say"] == "here":
            if known.visit(self, self.other, self.other, self.found):
                self.say("hello", meeting=self.meeting, after=known.last(self.other))
            else:
                self.leave(None)
        elif said["say"] == "hello":
            self.meeting = said["meeting"]
            may, before = known.admit(self, self.other, said["after"])
            if not may:
                self.say("crossed")
                self.leave(None)
                return
            if before is not None:
                before.lose("it has come again")
            self.say("welcome")
            self.become()
        elif said["say"] == "welcome":
            self.become()
        elif said["say"] == "crossed":
            self.leave(None)


class Side:
    """An engine."""

    def __init__(self, identity):
        self.known = PeerTable(identity, NoLock())


class World:
    """Two engines, and the messages that are under way between them, each in order."""

    def __init__(self):
        self.sides = {name: Side(name) for name in "ab"}
        self.queues, self.founds, self.numbers = {}, [], itertools.count()

    def queue(self, to, said):
        self.queues.setdefault(to, []).append(said)

    def dial(self, name):
        other = "b" if name == "a" else "a"
        talk = Talk(self, self.sides[name], other, is_comer=True,
                    meeting=f"{name}{next(self.numbers)}")  # fmt: skip
        door = Talk(self, self.sides[other], name, is_comer=False)
        talk.back, door.back = door, talk
        talk.found = Pending(LOOP, "connection")
        self.founds.append((name, talk.found))
        door.say("here")

    def lose(self, name):
        for peer in list(self.sides[name].known.peers.values()):
            peer.lose("closed")
            for talk in list(self.queues):
                if talk.back is not None and talk.back.peer is peer:
                    talk.back.say("over")

    def choices(self):
        return [talk for talk, queue in self.queues.items() if queue]

    def deliver(self, talk):
        talk.hear(self.queues[talk].pop(0))


def run(script, choose):
    """Do what a script says, and deliver messages in some order; return the world."""
    world, left = World(), list(script)
    while left or world.choices():
        ways = world.choices()
        which = choose(len(ways) + bool(left))
        if which < len(ways):
            world.deliver(ways[which])
        else:
            do, name = left.pop(0)
            getattr(world, do)(name)
    return world


def orders(script):
    """Yield what becomes of every order of events: an odometer of choices."""
    path = []
    while True:
        widths = []
        yield run(script, partial(_next, path, widths))
        del path[len(widths) :]
        while path and path[-1] + 1 >= widths[len(path) - 1]:
            path.pop()
        if not path:
            return
        path[-1] += 1


def _next(path, widths, width):
    """Return the next choice: that of the path, or the first."""
    widths.append(width)
    if len(widths) > len(path):
        path.append(0)
    return path[len(widths) - 1]


@pytest.mark.parametrize(
    "script",
    [
        [("dial", "a")],
        [("dial", "a"), ("dial", "a")],
        [("dial", "a"), ("dial", "b")],
        pytest.param(
            [("dial", "b"), ("dial", "a"), ("dial", "a")], marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_two_engines_are_connected_once_in_every_order(script):
    """Everybody gets the one peer that there is, and both mean the same connection."""
    many = 0
    for world in orders(script):
        many += 1
        once(world)
    assert many > 1 or len(script) == 1


@pytest.mark.parametrize("seed", range(200))
def test_many_who_come_and_go_are_connected_once(seed):
    """In some order, from both sides."""
    rng = random.Random(seed)
    script = [("dial", rng.choice("ab")) for _ in range(6)]
    once(run(script, rng.randrange))


def once(world):
    """Check that both sides have one peer, and everybody got it."""
    (a,), (b,) = (list(world.sides[n].known.peers.values()) for n in "ab")
    assert a.meeting == b.meeting
    for name, found in world.founds:
        assert found.done()
        assert found.wait(0) is (a if name == "a" else b)


@pytest.mark.parametrize("loser", "ab")
@pytest.mark.parametrize("comer", "ab")
@pytest.mark.parametrize("again", "ab")
def test_who_has_lost_a_connection_gets_another(loser, comer, again):
    """Also before the other has heard of the loss, whoever had come first."""
    world = run([("dial", comer)], lambda width: 0)
    before = world.sides["a"].known.peers["b"].meeting
    world.lose(loser)
    if again != loser:  # who has not lost it, has it until he hears of that
        while world.choices():
            world.deliver(world.choices()[0])
    world.dial(again)
    while world.choices():
        world.deliver(world.choices()[-1])  # the newest first: "over" comes last
    (a,), (b,) = (list(world.sides[n].known.peers.values()) for n in "ab")
    assert a.meeting == b.meeting != before
    assert world.founds[-1][1].wait(0).meeting == a.meeting


def test_an_engine_does_not_go_to_itself():
    """It is told what to do instead."""
    known = PeerTable("a", NoLock())
    with pytest.raises(RendezvousError, match="is this engine itself"):
        known.visit(None, "127.0.0.1:1", "a", Pending(LOOP, "connection"))


def test_a_name_that_several_have_is_refused_and_an_identity_is_not():
    """The error lists them."""
    known, founds = PeerTable("me", NoLock()), [Pending(LOOP, "peer") for _ in range(3)]
    for identity in ("x1", "x2"):
        peer = Peer(Side("me"), identity, "m")
        peer.name = "twin"
        known.welcome(peer)
        peer.ready.finish(None)
    for name, found in zip(("twin", "x2", "later"), founds, strict=True):
        known.find(name, found)
    with pytest.raises(CallError, match=r"2 peers are named 'twin'; .* x1 .*x2 "):
        founds[0].wait(0)
    assert "x2" == founds[1].wait(0).identity
    assert not founds[2].done()


def test_who_is_lost_before_he_is_ready_is_an_error():
    """Not a peer."""
    peer, found = Peer(Side("a"), "b", "m"), Pending(LOOP, "peer")
    hand_out(peer, found)
    assert not found.done()
    peer.lose("it hung up")
    with pytest.raises(RendezvousError, match="it hung up"):
        found.wait(0)
