"""Groups at the hub: what breaks with what, and whose members change their ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.meeting.test_rendezvous import hello, hub_of, meet, offer, told

from stretto.fabric.events import Heard, Tick
from stretto.fabric.meeting.messages import Offer, Report, Result
from stretto.fabric.messages import Leave, Lost, Propose, Ready, Verdict

CLOSES = Heard(link=13, message=Leave(failure=""))
PAIR = {"members": (0, 3), "group": "fate/0>3", "fate": (0, 1, 2, 3)}


@pytest.mark.parametrize(
    ("events", "blamed"),
    [
        ([CLOSES, offer(0, **PAIR)], (3,)),
        ([offer(0, **PAIR), CLOSES], (3,)),
        ([offer(0, **PAIR), Tick()], (3,)),
        ([offer(0, **PAIR), offer(3, tag="other", **PAIR)], (3,)),
    ],
)
def test_what_breaks_a_part_of_a_group_is_told_to_the_group(events, blamed):
    """All hear the first cause, before anybody who has heard of it closes."""
    hub = meet(4)
    for event in events:
        actions = hub.on(event, 6.0 if isinstance(event, Tick) else 0.0)
    verdicts = told(actions, Verdict)

    assert {10, 11, 12} <= set(verdicts)
    assert {("fate", blamed)} == {(v.group, v.blamed) for v in verdicts.values()}
    again = offer(1, (1, 2), group="fate/1>2", fate=(0, 1, 2, 3))
    later = told(hub.on(again, 6.0), Verdict)
    assert {11: verdicts[11]} == later


def changed(*identities, is_fresh=False, before=()):
    """A hub of 3 ranks, m0 to m2 on links 10 to 12, whose next ranks are these."""
    hub = hub_of(3, host_rank=0, stays_open=True)
    for rank in range(3):
        hub.on(hello(rank), 0.0)
    for event in before:
        hub.on(event, 0.0)
    wanted = Propose(
        generation=2, identities=identities, is_fresh=is_fresh, timeout_s=5.0
    )
    hub.on(Heard(link=10, message=wanted), 1.0)
    for identity in identities:
        ready = Ready(attempt=1, failure="")
        hub.on(Heard(link=10 + int(identity[1:]), message=ready), 1.0)
    assert 2 == hub.world.generation
    return hub


def part(link, members, group="old", generation=1, survives=False):
    """A member's part in an exchange of a group of some generation."""
    message = Offer(
        group=group,
        generation=generation,
        members=members,
        fate=group,
        fate_members=members,
        tag="t",
        payload=link,
        timeout_s=5.0,
        survives=survives,
    )
    return Heard(link=link, message=message)


def test_a_groups_ranks_are_those_of_its_own_generation():
    """Members of an old group keep their numbers in it, whatever they are now."""
    hub = changed("m2", "m0")
    assert [] == hub.on(part(12, (2, 0)), 2.0)
    old = told(hub.on(part(10, (2, 0)), 2.0), Result)
    assert [12, 10] == old[10].payloads
    assert {10, 12} == set(old)

    assert [] == hub.on(part(10, (0, 1), "new", 2), 2.0)
    new = told(hub.on(part(12, (0, 1), "new", 2), 2.0), Result)
    assert [12, 10] == new[12].payloads


@pytest.mark.parametrize(("is_fresh", "without"), [(False, (1,)), (True, (0, 1, 2))])
def test_a_group_that_a_generation_leaves_members_out_of_is_over(is_fresh, without):
    """Who waits in it is answered by that generation, who comes later by the hub."""
    hub = changed("m2", "m0", is_fresh=is_fresh, before=[part(10, (0, 1, 2))])
    assert hub.next_deadline is None
    for link in (10, 11, 12):
        said = told(hub.on(part(link, (0, 1, 2)), 2.0), Verdict)[link]
        assert ("CommunicatorBroken", without) == (said.error, said.blamed)
    assert is_fresh == bool(told(hub.on(part(12, (2, 0), "pair"), 2.0), Verdict))


def test_who_speaks_for_a_generation_that_it_is_not_in_is_lost():
    """Nor can anybody speak for one that has not begun."""
    for generation in (2, 3):
        hub = changed("m2", "m0")
        actions = hub.on(part(11, (0, 1), "new", generation), 2.0)
        assert {10, 12} == set(told(actions, Lost))


def test_a_loss_ends_what_is_exchanged_in_any_generation():
    """Of each group that the lost one is in."""
    hub = changed("m2", "m0")
    hub.on(part(12, (2, 0)), 2.0)
    hub.on(part(12, (0, 1), "new", 2), 2.0)
    hub.on(Heard(link=10, message=Leave(failure="fell")), 2.0)

    assert hub.next_deadline is None
    for generation, members, blamed in ((1, (2, 0), 0), (2, (0, 1), 1)):
        said = told(hub.on(part(12, members, "late", generation), 3.0), Verdict)[12]
        assert (blamed,) == said.blamed


def test_a_report_reaches_the_members_of_its_generation():
    """Ranks 0 and 1 of the second are m2 and m0."""
    said = Report(
        group="new",
        generation=2,
        members=(0, 1),
        error="CollectiveTimeout",
        text="late",
        blamed=(1,),
    )
    hub = changed("m2", "m0")
    assert {10, 12} == set(told(hub.on(Heard(link=12, message=said), 2.0), Verdict))


@given(st.permutations(range(4)), st.sets(st.integers(0, 3), max_size=3), st.data())
def test_those_who_are_left_hear_the_same_whoever_goes_meanwhile(order, goes, data):
    """Who is gone has no part, or the one that it gave; nobody waits for it."""
    hub = hub_of(4, host_rank=0, stays_open=True)
    for rank in range(4):
        hub.on(hello(rank, 4), 0.0)
    events = [part(10 + r, (0, 1, 2, 3), "g!0", survives=True) for r in order]
    for rank in sorted(goes):
        how = data.draw(st.sampled_from(["", "was killed"]))
        at = data.draw(st.integers(0, len(events)))
        events.insert(at, Heard(link=10 + rank, message=Leave(failure=how)))
    results = {}
    for event in events:
        results |= told(hub.on(event, 0.0), Result)

    stay = {10, 11, 12, 13} - {10 + rank for rank in goes}
    assert stay <= set(results)
    assert 1 == len({tuple(one.payloads) for one in results.values()})
    said = next(iter(results.values())).payloads
    assert stay <= set(said)
    assert all(one in (10 + rank, None) for rank, one in enumerate(said))
    assert hub.next_deadline is None
