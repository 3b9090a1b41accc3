"""A world from generation to generation: in every order, and what is refused."""

import pytest
from tests.nightly import at_night
from tests.pure.fabric.exploring import FIRST, begin, explore

from stretto.fabric.events import Heard, Send, Tick
from stretto.fabric.generations import Generations
from stretto.fabric.messages import (
    RANK,
    STANDBY,
    WATCHER,
    Abandoned,
    Came,
    Departed,
    Errand,
    Hello,
    Leave,
    Lost,
    Prepare,
    Propose,
    Ready,
    Say,
    Verdict,
    Welcome,
)
from stretto.fabric.world import World

RIVALS = {"A": "ABC", "B": "BC"}


@pytest.mark.parametrize(
    ("world", "most"),
    [
        at_night({"crashes": 2}, 2),
        ({"crashes": 1, "ranks": 3}, 1),
        at_night({"crashes": 2, "home": 0}, 2),
        ({"crashes": 0, "plans": RIVALS, "failing": "C"}, 1),
        pytest.param({"crashes": 2, "ranks": 3}, 2, marks=pytest.mark.slow),
        pytest.param({"crashes": 1, "plans": RIVALS}, 2, marks=pytest.mark.slow),
    ],
)
def test_in_every_order_all_believe_the_same_and_nobody_waits_for_ever(world, most):
    """Three members, of whom two may die at any point; `most` generations follow."""
    states, ends, generations = explore(begin(**world))

    assert states > ends > 0
    assert set(range(most + 1)) == generations


class Forgetful(World):
    """Takes any answer for the answer to what it asks now."""

    def _agree(self, identity, ready, held):
        now = Ready(attempt=self._attempts, failure=ready.failure)
        return super()._agree(identity, now, held)


class Hasty(World):
    """Begins a generation when the first has agreed."""

    def _agree(self, identity, ready, held):
        if self._change is not None:
            self._change.ready.update(self._change.order)
        return super()._agree(identity, ready, held)


class Patient(World):
    """Waits for the dead, too."""

    def _abandon(self, fault):
        return []


class Discreet(World):
    """Tells a loss to the ranks alone."""

    def _tell_gone(self, told, identity, why):
        actions = super()._tell_gone(told, identity, why)
        ranks = self.links(self._order)
        return [
            a
            for a in actions
            if not isinstance(a, Send) or a.message != told or a.link in ranks
        ]


@pytest.mark.parametrize(
    ("world", "found"),
    [
        (Forgetful, "did not agree"),
        (Hasty, "did not agree"),
        (Patient, "waits for ever"),
        (Discreet, "not all heard the same"),
    ],
)
def test_a_hub_with_a_fault_is_found_out(world, found):
    """What the walk looks for is there to be found."""
    plans = {"A": "ABC", "B": "BC"} if world is Forgetful else {"A": "ABC"}
    with pytest.raises(AssertionError, match=found):
        explore(begin(plans, failing="C", crashes=1, world=world))


def hello(identity, link, wish=RANK, rank=-1, host="box/b1", num_ranks=2):
    """A member comes."""
    message = Hello(
        identity=identity,
        wish=wish,
        rank=rank,
        num_ranks=num_ranks,
        pid=link,
        host=host,
        version="1",
        start_s=9.0,
        within_s=9.0,
    )
    return Heard(link=link, message=message)


def meet(*, stays_open=True):
    """A world of ranks a and b, on links 1 and 2, that have come at time 0."""
    world = World(
        2,
        deadline=9.0,
        timeout_s=9.0,
        generation=FIRST,
        host_rank=0,
        stays_open=stays_open,
    )
    world.on(hello("a", 1, rank=0), 0.0)
    world.on(hello("b", 2, rank=1), 0.0)
    return world


def say(world, link, message, now=1.0):
    """Have a member say something; return who is told what."""
    found = {}
    for action in world.on(Heard(link=link, message=message), now):
        if isinstance(action, Send):
            found.setdefault(action.link, []).append(action.message)
    return found


def propose(*identities, generation=FIRST + 1):
    """A proposal."""
    return Propose(
        generation=generation, identities=identities, is_fresh=False, timeout_s=5.0
    )


def test_who_comes_later_stands_by_and_may_become_a_rank():
    """It hears where things are, all that it came, and one message begins."""
    world = meet()
    told = world.on(hello("s", 3, STANDBY), 1.0)
    assert [(1, Came(identity="s")), (2, Came(identity="s"))] == [
        (a.link, a.message) for a in told[:2]
    ]
    assert (("a", "b"), ("s",)) == (
        told[2].message.identities,
        told[2].message.standbys,
    )

    asked = say(world, 1, propose("a", "s"))
    assert dict.fromkeys((1, 2, 3), Prepare) == {
        li: type(m) for li, (m,) in asked.items()
    }
    ready = Ready(attempt=asked[3][0].attempt, failure="")
    assert {} == say(world, 3, ready)
    begun = say(world, 1, ready)
    assert {1, 2, 3} == set(begun)
    (welcome,) = begun[2]
    assert (FIRST + 1, ("a", "s"), ("b",), (1, 3)) == (
        welcome.generation,
        welcome.identities,
        welcome.standbys,
        welcome.pids,
    )


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (propose("a", "s", generation=FIRST), "another generation has begun meanwhile"),
        (propose("a", "a"), "each once"),
        (propose(), "at least one member"),
        (propose("a", "x"), "a stranger 'x': not here"),
        (propose("a", "w"), r"watcher w \(pid 4\): not here"),
        (propose("b", "d"), r"standby d \(pid 5\): was killed"),
    ],
)
def test_a_proposal_that_cannot_be_is_refused_to_who_made_it(wanted, why):
    """With what is wrong; nobody else hears of it."""
    world = meet()
    for link, identity, wish in (
        (3, "s", STANDBY),
        (4, "w", WATCHER),
        (5, "d", STANDBY),
    ):
        world.on(hello(identity, link, wish), 1.0)
    say(world, 5, Leave(failure="was killed"))
    told = say(world, 2, wanted)

    with pytest.raises(Exception, match=why):
        raise ValueError(told[2][0].text)
    assert ([2], Abandoned) == (list(told), type(told[2][0]))
    assert world.next_deadline is None


def test_a_job_whose_ranks_stay_takes_nobody_else():
    """Neither beside its ranks nor for another generation."""
    world = meet(stays_open=False)
    assert "stay as they came" in say(world, 1, propose("a"))[1][0].text
    assert [3] == [a.link for a in world.on(hello("s", 3, STANDBY), 1.0)]
    far = meet().on(hello("s", 3, STANDBY, host="pod/b2"), 1.0)
    assert "LaunchEnvironmentError" == far[0].message.error
    assert [3, 3] == [a.link for a in far]
    early = World(2, deadline=9.0, timeout_s=9.0, generation=FIRST)
    verdict = early.on(hello("s", 3, STANDBY), 1.0)[0].message
    assert "takes nobody beside its ranks" in verdict.text


@pytest.mark.parametrize(
    ("event", "error", "why"),
    [
        (Tick(), "CollectiveTimeout", "rank 1 did not prepare in time"),
        (
            Heard(link=2, message=Leave(failure="fell")),
            "PeerLost",
            "rank 1 fell, while",
        ),
        (Heard(link=2, message=Leave(failure="")), "PeerLost", "rank 1 left while"),
        (
            Heard(link=2, message=Ready(attempt=1, failure="has no room")),
            "RendezvousError",
            "rank 1 has no room",
        ),
    ],
)
def test_what_stops_a_change_is_told_to_all_and_the_old_one_goes_on(event, error, why):
    """One verdict; the next attempt may follow."""
    world = meet()
    world.on(hello("w", 4, WATCHER), 1.0)
    say(world, 1, propose("b", "a"))
    say(world, 1, Ready(attempt=1, failure=""))
    verdicts = {
        a.link: a.message
        for a in world.on(event, 6.0)
        if isinstance(a, Send) and isinstance(a.message, Abandoned)
    }

    assert {1, 4} <= set(verdicts)
    assert 1 == len(set(verdicts.values()))
    assert error == verdicts[1].error
    assert why in verdicts[1].text
    assert FIRST == world.generation
    assert {} == say(world, 1, Ready(attempt=1, failure=""))
    assert Prepare is type(say(world, 1, propose("a"))[1][0])


def test_the_same_proposal_of_two_survivors_is_one():
    """Another one has to wait."""
    world = meet()
    say(world, 1, propose("b", "a"))

    assert {} == say(world, 2, propose("b", "a"))
    assert "ranks 0, 1 are proposed already" in say(world, 2, propose("a"))[2][0].text


def test_when_all_ranks_are_gone_who_stands_by_is_told():
    """Else it would wait for ever."""
    world = meet()
    world.on(hello("s", 3, STANDBY), 1.0)
    say(world, 1, Leave(failure=""))
    told = say(world, 2, Leave(failure="was killed"))

    assert [Lost, Verdict] == [type(m) for m in told[3]]
    assert "all ranks are gone" in told[3][1].text
    assert world.is_settled


def test_a_rank_that_leaves_in_order_is_replaced_without_a_fault():
    """It is told of the generation that it is not in, and then goes."""
    world = meet()
    world.on(hello("s", 3, STANDBY), 1.0)
    say(world, 2, propose("a", "s"))
    say(world, 1, Ready(attempt=1, failure=""))
    assert isinstance(say(world, 3, Ready(attempt=1, failure=""))[2][0], Welcome)
    told = say(world, 2, Leave(failure=""))

    assert {1: [Departed(identity="b")], 3: [Departed(identity="b")]} == told


def test_ranks_go_on_among_themselves_where_all_of_them_stay():
    """Under whatever numbers, for as long; unless the proposer says otherwise."""
    known = Generations()
    for number, order in enumerate(("ab", "sba", "sb")):
        known.begin(number, tuple(order), is_fresh=False)

    assert ((), (0,)) == (known.left_out((1,), 0), known.left_out((1, 0), 0))
    assert ((), (2,)) == (known.left_out((0, 1), 1), known.left_out((2, 0), 1))
    known.begin(3, ("a", "s", "b"), is_fresh=False)
    assert (0,) == known.left_out((0, 1), 0)  # it was away in between
    known.begin(4, ("a", "s", "b"), is_fresh=True)
    assert ((0, 1), ()) == (known.left_out((0, 1), 3), known.left_out((0, 1), 4))


def test_what_members_say_of_themselves_is_told_to_all_and_to_who_comes():
    """The last that each said, as long as it is here; the hub says whose it is."""
    world = meet()
    told = say(world, 1, Say(identity="b", said={"step": 1}))
    assert {1, 2} == set(told)
    assert [Say(identity="a", said={"step": 1})] == told[2]
    say(world, 1, Say(identity="a", said={"step": 2}))
    say(world, 2, Say(identity="b", said={"step": 3}))
    (welcome,) = [
        a.message
        for a in world.on(hello("w", 3, WATCHER), 1.0)
        if isinstance(a.message, Welcome)
    ]
    assert {"a": {"step": 2}, "b": {"step": 3}} == welcome.facts
    assert FIRST == welcome.since
    say(world, 2, Leave(failure=""))
    say(world, 1, propose("a"))
    begun = say(world, 1, Ready(attempt=1, failure=""))
    assert [{"a"}] * 2 == [set(begun[link][0].facts) for link in (1, 3)]


def test_whoever_asks_members_for_something_is_named_by_the_hub():
    """Nobody asks in another's name."""
    world = meet()
    world.on(hello("w", 3, WATCHER), 1.0)
    asked = Errand(verb="drain", about=("b",), said={}, sender="a")
    told = say(world, 3, asked)

    assert {1, 2, 3} == set(told)
    assert [Errand(verb="drain", about=("b",), said={}, sender="w")] == told[1]


def test_who_hosts_may_let_somebody_not_in():
    """In his words, and the others are not troubled."""
    world = World(
        1,
        deadline=9.0,
        timeout_s=9.0,
        generation=FIRST,
        stays_open=True,
        admit=lambda hello: "its host flaps" if hello.host == "odd/odd" else "",
    )
    world.on(hello("a", 1, rank=0, num_ranks=1), 0.0)
    actions = world.on(hello("s", 3, STANDBY, host="odd/odd"), 1.0)

    assert "standby (pid 3) is not let in: its host flaps" in actions[0].message.text
    assert {3} == {a.link for a in actions}
