"""What is asked of ranks while they train, and lose somebody meanwhile."""

from types import SimpleNamespace

import pytest

from stretto.fabric.messages import Abandoned, Errand, Prepare
from stretto.runtime.calls.changing import see_gone
from stretto.runtime.calls.options import Elastic
from stretto.runtime.calls.spares import YIELDS
from stretto.torch.elastic.policy import Planned


class Standing:
    """Three ranks, of whom this is the first, and two that stand by."""

    generation, identity = 3, "a"

    def __init__(self):
        self.identities, self.standbys = ("a", "b", "c"), ("d", "e")
        self.gone, self.dismissed = {}, set()
        self.facts = {i: {"ready": True} for i in self.standbys}
        self.said, self.suggested, self.fenced = [], [], []
        self.processes = SimpleNamespace(fence=self.fence)

    @property
    def is_rank(self):
        return self.identity in self.identities

    def agree(self, attempt, failure=""):
        self.said.append((attempt, failure))

    def suggest(self, order, **how):
        self.suggested.append("".join(order))

    def tell(self, **said):
        self.facts.setdefault(self.identity, {}).update(said)

    def fence(self, identities):
        self.fenced += identities
        return ""


class World:
    """What plans ask of their world; what is to be done later is written down."""

    stands_by = False
    elastic = Elastic()

    def __init__(self):
        self.standing, self.waiting = Standing(), []

    def later(self, call, *args):
        self.waiting.append((call, args))

    def wait(self):
        due, self.waiting = self.waiting, []
        for call, args in due:
            call(*args)


def drain(plan, *about):
    """Order ranks to leave."""
    for one in about:
        plan.hear(Errand(verb="drain", about=(one,), said={"stays": True}))


def asked(order, attempt):
    """Be asked to prepare for other ranks."""
    return Prepare(
        generation=4, attempt=attempt, identities=tuple(order), is_fresh=False
    )


def given_up(order):
    """Hear that other ranks come to nothing."""
    return Abandoned(
        generation=4, identities=tuple(order), error="PeerLost", text="", blamed=()
    )


@pytest.fixture
def world():
    return World()


def test_a_loss_gives_up_what_was_planned_and_it_comes_again(world):
    """Ranks that recover would never say that they are ready for it."""
    plan, standing = Planned(world), world.standing
    drain(plan, "b")
    assert ["adc"] == standing.suggested
    assert plan.plan(asked("adc", 7))
    assert (7, {"b": True}) == (plan.attempt, plan.goes)
    plan.give_up()
    assert (0, [7]) == (plan.attempt, [n for n, why in standing.said if why])
    assert plan.plan(asked("adc", 8)), "it is refused, too, while they recover"
    assert (0, [7, 8]) == (plan.attempt, [n for n, why in standing.said if why])
    plan.news(given_up("adc"))
    plan.resume()
    world.wait()
    assert ["adc", "adc"] == standing.suggested
    assert plan.plan(asked("adc", 9))
    assert 9 == plan.attempt


@pytest.mark.parametrize("how", ["gone", "dismissed", "yields", "nobody"])
@pytest.mark.parametrize("recovers", [False, True])
def test_what_follows_a_loss_is_prepared_at_once(world, how, recovers):
    """Whoever hears of it first proposes it; no step ends before it begins."""
    plan, standing = Planned(world), world.standing
    drain(plan, "b")
    plan.plan(asked("adc", 7))
    if recovers:
        plan.give_up()
    if how == "gone":
        standing.gone["b"] = "died"
    if how == "dismissed":
        standing.dismissed.add("b")
    if how == "yields":
        standing.facts["b"] = {YIELDS: standing.generation}
    assert not plan.plan(asked("abc" if how == "nobody" else "adc", 8))
    assert all(attempt == 7 for attempt, _ in standing.said)


def test_several_orders_are_done_one_after_another(world):
    """However many stand by: the others have the state. A refusal ends no other."""
    plan, standing = Planned(world), world.standing
    drain(plan, "b", "c")
    assert {"adc"} == {*standing.suggested}
    assert plan.plan(asked("adc", 7))
    plan.news(given_up("abd"))
    assert 7 == plan.attempt, "another one was refused"
    standing.identities, standing.standbys = ("a", "d", "c"), ("b", "e")
    standing.facts["b"] = {"ready": True}
    plan.news(given_up("adc"))
    assert 0 == plan.attempt
    world.wait()
    assert "adb" == standing.suggested[-1]
    standing.identities = ("a", "d", "b")
    plan.news(given_up("adb"))
    world.wait()
    assert (0, "adb") == (len(world.waiting), standing.suggested[-1])


def test_who_was_told_to_leave_stays_in_ranks_that_have_it(world):
    """More ranks were asked for, too, and these come first."""
    plan, standing = Planned(world), world.standing
    for one in standing.standbys:
        standing.facts[one]["ready"] = False
    drain(plan, "b")
    for one in standing.standbys:
        standing.facts[one]["ready"] = True
    assert plan.plan(asked("abcd", 7))
    assert {} == plan.goes


def test_one_that_stands_by_ends_nobody(world):
    """It was a rank, and knows the processes: they may be about to leave in order."""
    standing = world.standing
    assert not see_gone(standing, asked("adc", 1))
    assert ["b"] == standing.fenced
    standing.identity = "d"
    assert not see_gone(standing, asked("adc", 2))
    assert ["b"] == standing.fenced


@pytest.mark.parametrize("how", ["yields", "gone"])
def test_where_no_rank_stays_who_comes_waits_until_all_have_left(world, how):
    """Else ranks would begin whose state nobody has given yet; a refusal ends it."""
    plan, standing = Planned(world), world.standing
    standing.identity, standing.identities = "d", ("a",)
    assert plan.plan(asked("d", 7))
    world.wait()
    assert [] == standing.said
    if how == "gone":
        standing.gone["a"] = ""
    else:
        standing.facts["a"] = {YIELDS: standing.generation}
    world.wait()
    assert [(7, "")] == standing.said
    standing.facts, standing.gone = {}, {}
    assert plan.plan(asked("d", 8))
    plan.news(given_up("d"))
    world.wait()
    assert ([(7, "")], []) == (standing.said, world.waiting)
