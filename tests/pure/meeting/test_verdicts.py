"""The first verdict is everybody's, also where who found it goes, and the hub is late.

Three ranks of one host; rank 0, which hosts the hub, is stopped in a call. Every order
is walked in which the others time out, hear, give the hub up, leave and see each other
end; the hub may serve all the while, or never again. The machines are the real ones.
"""

import contextlib
import copy
import os
from types import SimpleNamespace

import pytest

from stretto.fabric.events import Heard, Send
from stretto.fabric.faults import Fault
from stretto.fabric.meeting.groups import Group, Roster, world
from stretto.fabric.meeting.hosting.rendezvous import Rendezvous
from stretto.fabric.meeting.last_words import LastWords
from stretto.fabric.meeting.membership import Break, MarkDeparted, Membership
from stretto.fabric.meeting.messages import Report
from stretto.fabric.meeting.peers import PeerGroup
from stretto.fabric.meeting.standing import Standing
from stretto.fabric.messages import Departed, Hello, Verdict, Welcome
from stretto.fabric.view import Ended, Tick, WorldView
from stretto.fabric.view import Heard as Told
from stretto.fabric.wire import Descriptor
from stretto.fabric.world import World

RANKS = 3
ALL = world(RANKS)
LEFT = Group(name="left", members=(0, 1))
RIGHT = Group(name="right", members=(1, 2))


class Paper(LastWords):
    """Last words without a file: one list of lines for all."""

    def __init__(self, lines):
        super().__init__()
        self.lines = lines

    def say(self, words):
        self.lines.append(words)

    def _new(self):
        found, self._read = self.lines[self._read :], len(self.lines)
        yield from found


class Node:
    """A rank in a call of one group, and what it does of its own accord."""

    def __init__(self, rank, group, welcome, lines):
        self.rank, self.group, self.identity = rank, group, f"m{rank}"
        self.up, self.down = [], []
        self.phase, self.fault = "waits", None
        self.seen: list[str] = []
        """Whose process it has seen end."""
        self.departed: dict[int, Fault | None] = {}
        membership = Membership(view=WorldView(welcome=welcome))
        membership.join(group)
        quiet = SimpleNamespace(watch=lambda *given: None, held=())
        news = contextlib.nullcontext()
        self.standing = Standing(self.identity, membership, news, self.say, quiet)
        self.standing.last_words = Paper(lines)

    def say(self, message, held=()):
        self.up.append(message)

    def take(self, actions):
        """Deal with what becomes of groups."""
        for action in actions:
            match action:
                case Break(group=group, fault=fault) if group == self.group.name:
                    self.end_call(fault)
                case MarkDeparted(rank=rank, after=after):
                    self.departed[rank] = after

    def end_call(self, fault):
        if self.fault is None:
            self.phase, self.fault = "broken", fault

    def judge(self):
        """What it says when its deadline is over: rank 0 came to no call."""
        host = SimpleNamespace(deadline_s=1.0)
        peers = PeerGroup(self.group, host, Roster(rank=self.rank))
        for rank, after in self.departed.items():
            peers.mark_departed(rank, after)
        waits_for = 0 if 0 in self.group.members else 1
        return peers._judge([self.group.index(waits_for)], "w", "")

    def key(self):
        view = self.standing._view
        known = (dict(view.gone), view._suspects, dict(self.departed))
        return (self.phase, self.fault, self.up, self.down, self.seen, known)


class Moment:
    """One state: the hub, what was said beside it, two ranks that are not stopped."""

    def __init__(self, groups, *, serves, words=True):
        self.serves, self.lines = serves, []
        self.hub = Rendezvous(
            World(RANKS, deadline=9.0, timeout_s=9.0, generation=0, host_rank=0)
        )
        if words:
            self.hub.settle = Paper(self.lines).settle
        actions = []
        for rank in range(RANKS):
            hello = Hello(
                identity=f"m{rank}", rank=rank, num_ranks=RANKS, pid=rank, host="h/h",
                version="1", start_s=9.0, within_s=9.0,
            )  # fmt: skip
            actions += self.hub.on(Heard(link=rank, message=hello), 0.0)
        (welcome, *_) = [a.message for a in actions if isinstance(a, Send)]
        assert isinstance(welcome, Welcome)
        lines = self.lines if words else None
        self.nodes = {
            r: Node(r, g, welcome, [] if lines is None else lines)
            for r, g in groups.items()
        }

    def key(self):
        return repr((self.lines, self.hub.world.gone, [n.key() for n in self.all]))

    @property
    def all(self):
        return list(self.nodes.values())

    def moves(self):
        """What may happen: names of functions, and for whom."""
        for rank, node in self.nodes.items():
            if self.serves and node.up:
                yield "hub_hears", rank, None
            if node.down and node.phase != "left":
                yield "hears", rank, None
            # Who waits for one that is in a call itself has a deadline that is later.
            waits_for_stopped = 0 in node.group.members or node.departed
            if node.phase == "waits" and waits_for_stopped:
                yield "times_out", rank, None
            if node.phase == "settles":
                yield "gives_hub_up", rank, None
            if node.phase == "broken":
                yield "leaves", rank, None
            if node.phase == "left":
                continue
            for other in self.all:
                if other.phase == "left" and other.identity not in node.seen:
                    yield "sees_end", rank, other.identity
            if node.standing._view._suspects:
                yield "grace_is_over", rank, None

    def hub_hears(self, rank, _):
        said = Heard(link=rank, message=self.nodes[rank].up.pop(0))
        for action in self.hub.on(said, 0.0):
            if isinstance(action, Send) and action.link in self.nodes:
                self.nodes[action.link].down.append(action.message)

    def hears(self, rank, _):
        node = self.nodes[rank]
        said = node.down.pop(0)
        if isinstance(said, Verdict):
            node.take(node.standing.judge(said))
        else:
            node.take(node.standing.notice(Told(message=said)))

    def times_out(self, rank, _):
        node = self.nodes[rank]
        node.phase, found, group = "settles", node.judge(), node.group
        node.mine = found
        node.say(
            Report(
                group=group.name, generation=0, members=group.members,
                error=found.error, text=found.text, blamed=found.blamed,
            )
        )  # fmt: skip

    def gives_hub_up(self, rank, _):
        node = self.nodes[rank]
        node.end_call(node.standing.settle(node.group.name, node.mine))

    def leaves(self, rank, _):
        node = self.nodes[rank]
        node.standing.parting = node.standing.settle(node.group.name, node.fault)
        node.say(node.standing.leave(""))
        node.phase = "left"

    def sees_end(self, rank, identity):
        node = self.nodes[rank]
        node.seen.append(identity)
        node.take(node.standing.notice(Ended(identity=identity)))

    def grace_is_over(self, rank, _):
        node = self.nodes[rank]
        while node.down:  # what has come is heard first
            self.hears(rank, None)
        suspects = node.standing._view._suspects
        suspects.update(dict.fromkeys(suspects, 0.0))
        node.take(node.standing.notice(Tick()))


def walk(first):
    """Return what each rank heard, at every end of every order."""
    todo, known, ends = [first], {first.key()}, set()
    while todo:
        moment = todo.pop()
        moves = list(moment.moves())
        if not moves:
            ends.add(tuple(node.fault for node in moment.all))
        for name, rank, about in moves:
            after = copy.deepcopy(moment)
            getattr(after, name)(rank, about)
            if (key := after.key()) not in known:
                known.add(key)
                todo.append(after)
    return ends


@pytest.mark.parametrize("serves", [True, False], ids=["serving", "stopped"])
def test_all_hear_the_first_verdict_whatever_they_see_first(serves):
    """Nobody is named for having gone after it had named another."""
    for faults in walk(Moment({1: ALL, 2: ALL}, serves=serves)):
        assert {("CollectiveTimeout", (0,))} == {(f.error, f.blamed) for f in faults}
        assert len(set(faults)) == 1


@pytest.mark.parametrize("serves", [True, False], ids=["serving", "stopped"])
def test_who_leaves_after_a_fault_passes_the_fault_on(serves):
    """Also to ranks of groups that the fault was not in."""
    for mine, others in walk(Moment({1: LEFT, 2: RIGHT}, serves=serves)):
        assert ("CollectiveTimeout", (0,)) == (mine.error, mine.blamed)
        assert ("CollectiveTimeout", (0,)) == (others.error, others.blamed)
        assert mine.text in others.text
        assert "rank 0 (world rank 1) closed its communicator" in others.text


def test_without_last_words_a_stopped_hub_has_survivors_name_each_other():
    """The walk would see it."""
    ends = walk(Moment({1: ALL, 2: ALL}, serves=False, words=False))

    assert {(0,), (1,), (2,)} == {f.blamed for faults in ends for f in faults}


def test_what_is_said_there_is_read_by_all():
    """In one order, whole lines only; what is none of ours is passed over."""
    one = LastWords.new()
    assert one.file is not None
    two = LastWords(Descriptor(os.dup(one.file.number)))
    first = Fault(error="CollectiveTimeout", text="late", blamed=(0,))
    assert first == one.settle("g", first)
    assert first == two.settle("g", Fault(error="PeerLost", text="x", blamed=(1,)))
    os.write(two.file.number, b'{"say": "Nonsense"}\n[]\n{"say"')
    two.say(Departed(identity="a"))
    two.say(Departed(identity="b"))

    assert [Verdict, Departed] == [type(words) for words in one.hear()]
    assert [] == one.hear()
    for each in (one, two):
        each.close()
        each.close()
    assert first == one.settle("g", Fault(error="PeerLost", text="y"))
