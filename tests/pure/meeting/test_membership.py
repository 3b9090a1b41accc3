"""One rank's view of the others, without sockets or processes."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stretto import errors
from stretto.fabric.faults import Fault, name_ranks
from stretto.fabric.meeting.groups import Group, Roster, divide, is_sound, world
from stretto.fabric.meeting.membership import Break, MarkDeparted, Membership
from stretto.fabric.meeting.messages import Report
from stretto.fabric.meeting.peers import DEPARTED_S, PeerGroup
from stretto.fabric.meeting.standing import Standing
from stretto.fabric.messages import Departed, Lost, Message, Welcome
from stretto.fabric.view import (
    GRACE_S,
    ORPHAN_GRACE_S,
    Ended,
    Heard,
    HubEnded,
    Tick,
    WorldView,
)

PAIR = Group(name="pair", members=(2, 3))


def view(num_ranks, **changes):
    """What a member knows of ranks m0, m1, ... once they have met; m0 hosts the hub."""
    welcome = Welcome(
        generation=0,
        identities=tuple(f"m{rank}" for rank in range(num_ranks)),
        pids=tuple(range(num_ranks)),
        home="m0",
        hosts=(),
        names=(),
        watched=(),
    )
    return WorldView(welcome=welcome, **changes)


def member(**changes):
    """A member of a world of 4 and of a pair in it."""
    made = Membership(view=view(4, **changes))
    made.join(world(4))
    made.join(PAIR)
    return made


def lost(rank):
    """The hub's word that a rank is lost."""
    return Heard(message=Lost(identity=f"m{rank}", how="was killed by SIGKILL"))


def broken(actions):
    """Which groups broke, and who is blamed."""
    return {a.group: a.fault.blamed for a in actions if isinstance(a, Break)}


def test_a_loss_breaks_exactly_the_groups_it_was_in():
    """Each once, with the reason."""
    m = member()
    first = m.on(lost(1), 0.0)

    assert {"world": (1,)} == broken(first)
    assert first[0].fault.text.startswith("rank 1 was killed by SIGKILL; ")
    second = m.on(lost(3), 0.0)
    assert {"pair": (3,)} == broken(second)
    assert second[0].fault.text.startswith("rank 1 (world rank 3) was killed")
    assert [] == m.on(lost(3), 0.0)


def test_a_group_is_born_broken_when_a_member_is_lost_already():
    """Late groups learn what was before them."""
    m = member()
    m.on(lost(1), 0.0)

    assert (1,) == m.join(Group(name="late", members=(1, 2))).blamed
    assert m.join(Group(name="fine", members=(0, 2))) is None


def test_who_came_later_names_groups_as_the_others_do():
    """By how many generations there were before, also those that it has not seen."""
    known = view(2)
    for since, generation in ((7, 7), (7, 9)):
        said = replace(known.welcome, since=since, generation=generation)
        member = Membership(view=WorldView(welcome=said))
        news, processes = contextlib.nullcontext(), SimpleNamespace(held=())
        standing = Standing("m0", member, news, lambda *given: None, processes)

        assert world(2, generation, nth=generation - since) == standing.world()


def test_a_departure_is_noted_and_breaks_nothing():
    """What it sent is there; its process may end as it likes."""
    m = member()

    assert [MarkDeparted(group="world", rank=1)] == m.on(
        Heard(message=Departed(identity="m1")), 0.0
    )
    assert [] == m.on(Ended(identity="m1"), 0.0)
    assert m.view.next_deadline is None


def test_the_hubs_word_is_awaited_when_a_process_ends():
    """It may have left in order; after the grace it counts as lost."""
    m = member()
    assert [] == m.on(Ended(identity="m1"), 1.0)
    assert 1.0 + GRACE_S == m.view.next_deadline
    assert [] == m.on(Tick(), 1.0 + GRACE_S / 2)

    assert {"world": (1,)} == broken(m.on(Tick(), 1.0 + GRACE_S))
    m = member()
    m.on(Ended(identity="m1"), 1.0)
    m.on(Heard(message=Departed(identity="m1")), 1.0)
    assert [] == m.on(Tick(), 9.0)


@pytest.mark.parametrize("process_first", [True, False])
def test_the_death_of_the_hubs_host_is_named(process_first):
    """Connection and process end in either order."""
    m = member()
    signs = [Ended(identity="m0"), HubEnded()]
    actions = [m.on(s, 1.0) for s in (signs if process_first else signs[::-1])]

    assert [] == actions[0]
    assert {"world": (0,)} == broken(actions[1])
    assert m.view.next_deadline is None


def test_deaths_after_the_hubs_are_noticed_by_oneself():
    """Nobody is left to say more."""
    m = member()
    m.on(Heard(message=Departed(identity="m0")), 1.0)
    assert [] == m.on(HubEnded(), 1.0)

    assert {"world": (3,), "pair": (3,)} == broken(m.on(Ended(identity="m3"), 2.0))


def test_a_hub_that_hangs_up_while_its_host_lives_is_an_error_of_its_own():
    """Nobody died, still nothing can go on."""
    m = member()
    assert [] == m.on(HubEnded(), 1.0)
    actions = m.on(Tick(), 1.0 + ORPHAN_GRACE_S)

    assert {"world": (), "pair": ()} == broken(actions)
    assert "RendezvousError" == actions[0].fault.error


def test_without_pidfds_the_end_of_the_hub_is_the_end_of_its_host():
    """Other systems have only the connection to go by."""
    m = member(has_pidfds=False)
    m.on(HubEnded(), 1.0)

    assert {"world": (0,)} == broken(m.on(Tick(), 2.0))


def test_a_verdict_breaks_what_it_names():
    """One group, or with no name all of them."""

    def verdict(group):
        return group, Fault(error="CollectiveTimeout", text="t", blamed=(1,))

    m = member()
    assert {"pair": (1,)} == broken(m.judge(*verdict("pair")))
    assert {} == broken(m.judge(*verdict("unknown")))
    assert {"world": (1,)} == broken(m.judge(*verdict("")))


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_generation_breaks_the_groups_that_it_leaves_members_out_of(is_fresh):
    """In words; a group that all of its members stay for goes on, unless all end."""
    m = member()
    welcome = replace(
        m.view.welcome, generation=1, identities=("m3", "m9", "m2"), is_fresh=is_fresh
    )
    actions = m.on(Heard(message=welcome), 0.0)

    pair = {"pair": (2, 3)} if is_fresh else {}
    assert {"world": (0, 1, 2, 3) if is_fresh else (0, 1)} | pair == broken(actions)
    assert "a generation of ranks has begun without rank" in actions[0].fault.text
    assert [welcome] == actions[-1:]
    assert is_fresh == (m.join(replace(PAIR, name="late")) is not None)
    m.join(Group(name="new", members=(0, 1, 2), generation=1))
    assert {"new": (1,)} == broken(m.on(lost(9), 1.0))
    assert (0, 2) == (m.view.rank_of("m3"), m.view.rank_of("m2"))
    assert [] == m.on(Heard(message=replace(welcome, generation=0)), 2.0)


class FakeHost:
    """A meeting that remembers what was said, and answers with a verdict or not."""

    def __init__(self, answer=None):
        self.deadline_s = 30.0
        self.said: list[Message] = []
        self.answer = answer
        self.peers = None

    def say(self, message):
        self.said.append(message)
        if self.answer is not None:
            self.peers.break_(self.answer)


def group_of(host):
    """The pair (2, 3) as rank 2 sees it."""
    host.peers = PeerGroup(PAIR, host, Roster(rank=2))
    return host.peers


def test_a_group_numbers_its_own_ranks():
    """World rank 2 is rank 0 of the pair."""
    peers = group_of(FakeHost())

    assert (0, 2, 0) == (peers.rank, peers.num_ranks, int(peers.broken[0]))


def test_a_timeout_is_reported_and_names_world_ranks():
    """The hub's answer is what is raised, so that all say the same."""
    theirs = Fault(error="CollectiveMismatch", text="they know better", blamed=(3,))
    host = FakeHost(theirs)
    error = group_of(host).fail([1], "step 4")

    assert isinstance(host.said[0], Report)
    assert "rank 1 (world rank 3) did not come within 30 s: step 4" in host.said[0].text
    assert isinstance(error, errors.CollectiveMismatch)
    assert "they know better" == str(error)
    assert (3,) == error.blamed


def test_a_mismatch_says_who_called_what():
    """In the executor's words."""
    theirs = Fault(error="CollectiveMismatch", text="x")
    host = FakeHost(theirs)
    group_of(host).fail([], "here", mismatch="rank 0 called a; rank 1 called b")

    assert "rank 0 called a; rank 1 called b" in host.said[0].text
    assert "CollectiveMismatch" == host.said[0].error


def test_what_a_call_refuses_in_its_midst_is_said_on_every_rank():
    """In the executor's words, without anybody to blame."""
    host = FakeHost(Fault(error="CallError", text="rank 1 has 9 elements; want 8"))
    error = group_of(host).fail([], "", refused="rank 1 has 9 elements; want 8")

    assert ("CallError", ()) == (host.said[0].error, host.said[0].blamed)
    assert isinstance(error, errors.CallError)
    assert "rank 1 has 9 elements; want 8" == str(error)


def broken_by(kind):
    """A pair that such a fault has broken."""
    peers = group_of(FakeHost())
    peers.break_(Fault(error=kind, text="rank 3 called all_gather"))
    return peers


def test_a_broken_group_refuses_to_exchange():
    """It raises what broke it, in the same words."""
    with pytest.raises(errors.CollectiveMismatch, match="rank 3 called all_gather"):
        broken_by("CollectiveMismatch").exchange({})
    with pytest.raises(errors.CommunicatorBroken, match="rank 3 called all_gather"):
        broken_by("CommunicatorBroken").exchange({})
    with pytest.raises(errors.CollectiveTimeout, match="rank 3 called all_gather"):
        broken_by("CollectiveTimeout").split(0)


def test_after_a_fault_nothing_is_reported_again():
    """The reason is kept."""
    host = FakeHost()
    peers = group_of(host)
    woken = []
    peers.on_break.append(lambda: woken.append(1))
    for text in ("one", "two"):
        peers.break_(Fault(error="PeerLost", text=text, blamed=(3,)))

    assert [1] == woken
    assert 1 == int(peers.broken[0])
    assert "one [w]" == str(peers.fail([1], "w"))
    assert [] == host.said
    with pytest.raises(errors.PeerLost, match="one"):
        peers.exchange({})


def test_who_gives_up_for_the_fault_of_another_names_that_one():
    """It has heard of it in a group that lies in this one, say."""
    late = errors.CollectiveTimeout("rank 1 did not come")
    for blamed, error, found in (
        ((1,), "CollectiveTimeout", (1,)),
        ((), "PeerLost", (2,)),
    ):
        late.blamed = blamed
        host = FakeHost(Fault(error="PeerLost", text="x"))
        group_of(host).abandon("raised it", late)

        assert (error, found) == (host.said[0].error, host.said[0].blamed)


def test_waits_are_short_once_a_member_has_closed():
    """It sends nothing more, so there is no need for the whole deadline."""
    theirs = Fault(error="PeerLost", text="x", blamed=(3,))
    host = FakeHost(theirs)
    peers = group_of(host)
    peers.mark_departed(0)
    assert 30.0 == peers.deadline_s
    peers.mark_departed(3)
    peers.fail([1], "all_reduce")

    assert DEPARTED_S == peers.deadline_s
    said = "rank 1 (world rank 3) closed its communicator and will not come"
    assert said in host.said[0].text


def test_a_fault_becomes_the_error_it_names():
    """And nothing else than an error of ours."""
    for kind in ("PeerLost", "CollectiveTimeout", "CollectiveMismatch"):
        assert kind == type(Fault(error=kind, text="t").to_error()).__name__
    strange = Fault(error="SystemExit", text="t").to_error()
    assert isinstance(strange, errors.RendezvousError)
    error = errors.PeerLost("gone")
    error.blamed = (4,)
    assert Fault(error="PeerLost", text="gone", blamed=(4,)) == Fault.of(error)


def test_splitting_follows_color_then_key_then_rank():
    """None joins nothing; splits have names of their own."""
    votes = [(1, 5), (0, 0), (1, 2), (None, 0)]
    parts = divide(world(4), 7, votes)

    assert {0: (2, 0), 2: (2, 0), 1: (1,)} == {r: g.members for r, g in parts.items()}
    assert {"world/7.0", "world/7.1"} == {g.name for g in parts.values()}


def test_groups_must_be_sound():
    """Distinct ranks of the world, at least one."""
    assert is_sound((1, 0), 2)
    assert not is_sound((0, 0), 2)
    assert not is_sound((2,), 2)
    assert not is_sound((), 2)


def test_ranks_are_named_in_order():
    """Singular, plural and nobody."""
    names = (name_ranks([1]), name_ranks([3, 1]), name_ranks([]))

    assert ("rank 1", "ranks 1, 3", "ranks none") == names
    assert "rank 1 (world rank 3)" == PAIR.name_ranks([3])
    assert "ranks 0 (world rank 2), 1 (world rank 3)" == PAIR.name_ranks([2, 3])
    assert "ranks 1, 3" == world(4).name_ranks([3, 1])
