"""The hub's protocol without sockets: who comes, who goes, who is told what."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.fabric.events import (
    Closed,
    Died,
    Drop,
    GiveUp,
    Heard,
    Send,
    Tick,
)
from stretto.fabric.faults import Fault
from stretto.fabric.meeting.hosting.rendezvous import Rendezvous
from stretto.fabric.meeting.messages import Offer, Report, Result
from stretto.fabric.messages import Departed, Hello, Leave, Lost, Verdict, Welcome
from stretto.fabric.world import World


def hello(rank, num_ranks=3, **changes):
    """A rank's hello; its link is 10 + rank unless a test says otherwise."""
    said = {"pid": 100 + rank, "host": "box/b1", "version": "1", "identity": f"m{rank}"}
    said |= {"start_s": 100.0, "within_s": 100.0, **changes}
    return Heard(link=10 + rank, message=Hello(rank=rank, num_ranks=num_ranks, **said))


def offer(rank, members, tag="t", payload=None, group="g", timeout_s=5.0, fate=None):
    """A rank's part in an exchange; `fate` is who breaks with it, if not the group."""
    message = Offer(
        group=group,
        generation=1,
        members=members,
        fate=group if fate is None else "fate",
        fate_members=members if fate is None else fate,
        tag=tag,
        payload=payload,
        timeout_s=timeout_s,
    )
    return Heard(link=10 + rank, message=message)


def hub_of(num_ranks, timeout_s=10.0, **more):
    """A hub to which nobody has come, at time 0."""
    world = World(
        num_ranks, deadline=timeout_s, timeout_s=timeout_s, generation=1, **more
    )
    return Rendezvous(world)


def meet(num_ranks=3, present=None):
    """A hub at which these ranks (all, unless told) have come at time 0."""
    hub = hub_of(num_ranks, host_rank=0)
    for rank in range(num_ranks) if present is None else present:
        hub.on(hello(rank, num_ranks), 0.0)
    return hub


def told(actions, kind):
    """Which links are told a message of this kind."""
    sends = [a for a in actions if isinstance(a, Send)]
    return {a.link: a.message for a in sends if isinstance(a.message, kind)}


def drops(actions):
    """Which links are ended."""
    return [a.link for a in actions if isinstance(a, Drop)]


@given(st.permutations(range(5)))
def test_all_are_welcome_when_the_last_has_come(order):
    """Nobody before, everybody then, whatever the order."""
    hub = hub_of(5)
    actions = [hub.on(hello(rank, 5), 0.0) for rank in order]

    assert [[]] * 4 == actions[:-1]
    welcome = told(actions[-1], Welcome)
    assert {10, 11, 12, 13, 14} == set(welcome)
    assert (100, 101, 102, 103, 104) == welcome[12].pids
    assert hub.next_deadline is None


@given(st.sets(st.integers(0, 5), min_size=1, max_size=5))
def test_the_deadline_names_exactly_the_absent(present):
    """Everybody who came hears it, and whoever comes later hears it at once."""
    hub = meet(6, present)
    absent = tuple(sorted(set(range(6)) - present))
    assert 10.0 == hub.next_deadline
    assert [] == hub.on(Tick(), 9.9)
    verdicts = told(hub.on(Tick(), 10.0), Verdict)

    assert {10 + r for r in present} == set(verdicts)
    assert {("CollectiveTimeout", absent)} == {
        (v.error, v.blamed) for v in verdicts.values()
    }
    late = hub.on(hello(absent[0], 6), 11.0)
    assert "comes too late" in told(late, Verdict)[10 + absent[0]].text
    assert [10 + absent[0]] == drops(late)


def test_the_text_of_a_timeout_names_both_sides():
    """Who is missing, who is here, how long, and what to do."""
    verdict = told(meet(4, [0, 2]).on(Tick(), 10.0), Verdict)[10]

    assert (
        "ranks 1, 3 of 4 did not come within 10 s (ranks 0, 2 did); read the logs of "
        "the missing, or allow more time with deadline_s" == verdict.text
    )


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (hello(2, 4), r"rank 2 \(pid 102\) wants 4 ranks, the others 3"),
        (hello(7), r"rank 7 \(pid 107\) is not one of 0 to 2"),
        (hello(2, version="2"), "runs stretto 2, the others 1; install one version"),
        (hello(0), r"rank 0 is already here \(pid 100\); give each job an address"),
    ],
)
def test_a_guest_that_does_not_fit_is_refused(event, text):
    """It alone is sent away; the others meet as if it had not come."""
    hub = meet(3, [0, 1])
    event = Heard(link=99, message=replace(event.message, identity="late"))
    actions = hub.on(event, 0.0)

    assert [99] == list(told(actions, Verdict)) == drops(actions)
    error = Fault(
        error="RendezvousError", text=told(actions, Verdict)[99].text
    ).to_error()
    with pytest.raises(type(error), match=text):
        raise error
    assert {10, 11, 12} == set(told(hub.on(hello(2), 0.0), Welcome))


def test_ranks_on_two_hosts_are_refused_on_both():
    """One line that says what is needed; containers of a host are one host."""
    hub = meet(3, [0])
    assert [] == hub.on(hello(1, host="pod/b1"), 0.0)
    verdicts = told(hub.on(hello(2, host="box2/b2"), 0.0), Verdict)

    assert {10, 11, 12} == set(verdicts)
    assert "LaunchEnvironmentError" == verdicts[10].error
    assert "start all of them on one host" in verdicts[10].text


def test_who_speaks_before_saying_hello_is_sent_away():
    """Strangers change nothing."""
    hub = meet()

    assert [Drop(link=77)] == hub.on(Heard(link=77, message=Leave(failure="")), 0.0)
    assert [] == hub.on(Closed(link=77), 0.0)


@pytest.mark.parametrize("event", [Closed(link=11), Died(rank=1, how="was killed")])
def test_a_death_is_told_to_all_others_once(event):
    """However many signs of it come."""
    hub = meet()
    lost = told(hub.on(event, 1.0), Lost)

    assert {10, 12} == set(lost)
    assert "m1" == lost[10].identity
    assert [] == hub.on(Died(rank=1, how="again"), 1.0)
    assert [] == hub.on(Closed(link=11), 1.0)


def test_a_death_before_all_have_come_ends_the_meeting():
    """Those here are told, and late comers too."""
    hub = meet(3, [0, 1])
    verdicts = told(hub.on(Closed(link=11), 1.0), Verdict)

    assert {10} == set(verdicts)
    assert ("PeerLost", (1,)) == (verdicts[10].error, verdicts[10].blamed)
    late = told(hub.on(hello(2), 1.0), Verdict)[12]
    assert ("PeerLost", (1,)) == (late.error, late.blamed)
    assert [] == hub.on(Tick(), 99.0)


def test_leaving_is_not_dying():
    """The others hear that it left, and its end afterwards is nothing."""
    hub = meet()
    actions = hub.on(Heard(link=11, message=Leave(failure="")), 1.0)

    assert {10, 12} == set(told(actions, Departed))
    assert [11] == drops(actions)
    assert [] == hub.on(Closed(link=11), 1.0)
    assert [] == hub.on(Died(rank=1, how="exited"), 1.0)


def test_leaving_with_a_failure_is_dying_with_a_reason():
    """The reason reaches the others."""
    failing = Heard(link=11, message=Leave(failure="raised ValueError: x"))

    assert "raised ValueError: x" == told(meet().on(failing, 1.0), Lost)[10].how


def test_the_meeting_ends_when_all_have_left():
    """Then, and not before."""
    hub = meet(2)
    for rank in range(2):
        assert not hub.is_finished
        hub.on(Heard(link=10 + rank, message=Leave(failure="")), 1.0)
        hub.on(Closed(link=10 + rank), 1.0)

    assert hub.is_finished


@given(st.permutations([4, 1, 2]))
def test_an_exchange_gives_all_parts_in_the_groups_order(order):
    """Whoever comes first; the group's order need not be the ranks'."""
    hub = meet(5)
    members = (4, 1, 2)
    for rank in order[:-1]:
        assert [] == hub.on(offer(rank, members, payload=rank), 1.0)
    results = told(hub.on(offer(order[-1], members, payload=order[-1]), 1.0), Result)

    assert {11, 12, 14} == set(results)
    assert [4, 1, 2] == results[14].payloads
    assert hub.next_deadline is None


def test_who_misses_an_exchange_is_named_at_the_deadline():
    """All members hear it, the missing included; other groups go on."""
    hub = meet()
    hub.on(offer(0, (0, 1)), 1.0)
    hub.on(offer(1, (0, 1, 2), group="world"), 1.0)
    hub.on(offer(2, (0, 1, 2), group="world"), 1.0)
    assert 6.0 == hub.next_deadline
    actions = hub.on(Tick(), 6.0)
    verdicts = {(a.link, a.message.group): a.message for a in actions}

    assert ("CollectiveTimeout", (1,)) == (
        verdicts[10, "g"].error,
        verdicts[10, "g"].blamed,
    )
    assert "rank 1 did not come in time to t of g" in verdicts[11, "g"].text
    assert {10, 11, 12} == {li for li, group in verdicts if group == "world"}
    again = told(hub.on(offer(1, (0, 1)), 7.0), Verdict)
    assert [11] == list(again)


def test_different_calls_in_one_group_are_a_mismatch_for_all():
    """The text says who came to what."""
    hub = meet()
    hub.on(offer(0, (0, 1, 2), tag="empty"), 1.0)
    verdicts = told(hub.on(offer(2, (0, 1, 2), tag="split"), 1.0), Verdict)

    assert {10, 11, 12} == set(verdicts)
    assert "CollectiveMismatch" == verdicts[11].error
    assert "rank 2 came to split of g" in verdicts[11].text
    assert "while rank 0 came to empty" in verdicts[11].text


def test_who_waits_for_a_rank_that_left_is_told_at_once():
    """Before the exchange or in the middle of it."""
    hub = meet()
    hub.on(offer(0, (0, 1, 2)), 1.0)
    actions = hub.on(Heard(link=11, message=Leave(failure="")), 1.0)
    assert {10, 12} == set(told(actions, Verdict))
    verdict = told(hub.on(offer(2, (1, 2), group="h"), 1.0), Verdict)[12]

    assert ("PeerLost", (1,)) == (verdict.error, verdict.blamed)
    assert "rank 1 closed its communicator and will not come to t of h" in verdict.text


def test_who_waits_for_a_dead_rank_is_told_at_once():
    """An exchange never outlives a member."""
    hub = meet()
    hub.on(Closed(link=11), 1.0)
    verdict = told(hub.on(offer(0, (0, 1)), 2.0), Verdict)[10]

    assert ("PeerLost", (1,)) == (verdict.error, verdict.blamed)


def test_a_report_is_everybodys_and_the_first_one_stays():
    """All members raise the same error."""

    def report(rank, text):
        message = Report(
            group="g",
            generation=1,
            members=(0, 1),
            error="CollectiveTimeout",
            text=text,
            blamed=(1,),
        )
        return Heard(link=10 + rank, message=message)

    hub = meet()
    first = told(hub.on(report(0, "one"), 1.0), Verdict)
    second = told(hub.on(report(1, "two"), 1.0), Verdict)

    assert {10, 11} == set(first)
    assert {"one"} == {v.text for v in (*first.values(), *second.values())}


@pytest.mark.parametrize("members", [(0, 2), (1, 1), (1, 7), ()])
def test_a_member_that_speaks_nonsense_is_lost(members):
    """It does not belong to the group, or the group cannot be."""
    actions = meet().on(offer(1, members), 1.0)

    assert {10, 12} == set(told(actions, Lost))
    assert [11] == drops(actions)


def test_the_host_can_call_the_meeting_off_until_it_is_complete():
    """Later it is too late for that."""
    fault = Fault(error="LaunchEnvironmentError", text="no")

    assert {10} == set(told(meet(3, [0]).on(GiveUp(fault=fault), 0.0), Verdict))
    assert [] == meet(3).on(GiveUp(fault=fault), 0.0)


RANKS = st.integers(0, 3)
MEMBERS = st.sampled_from([(0, 1, 2, 3), (0, 1), (2, 1), (3,)])
EVENTS = st.one_of(
    RANKS.map(lambda r: hello(r, 4)),
    st.builds(
        lambda r, m, t: offer(r, m, t, group=str(m)), RANKS, MEMBERS, st.just("t")
    ),
    RANKS.map(lambda r: Heard(link=10 + r, message=Leave(failure=""))),
    RANKS.map(lambda r: Closed(link=10 + r)),
    RANKS.map(lambda r: Died(rank=r, how="died")),
    st.just(Tick()),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 4)), max_size=60))
def test_no_rank_ever_waits_for_ever(story):
    """Whatever happens, after the last deadline everybody alive has an answer."""
    hub, now = hub_of(4, 20.0), 0.0
    waiting: dict[int, set[str]] = {}
    links = set()
    for event, pause in [*story, (Tick(), 1000.0)]:
        now += pause
        if isinstance(event, Heard) and isinstance(event.message, Hello):
            if event.link in links:
                continue  # a rank says hello once on a link
            links.add(event.link)
            waiting.setdefault(event.link, set()).add("")
        if isinstance(event, Heard) and event.link in waiting:
            if isinstance(event.message, Offer):
                waiting[event.link].add(event.message.group)
            elif isinstance(event.message, Leave):
                del waiting[event.link]
        if isinstance(event, Closed):
            waiting.pop(event.link, None)
        if isinstance(event, Died):
            waiting.pop(10 + event.rank, None)
        for action in hub.on(event, now):
            answered = waiting.get(action.link, set())
            match action:
                case Drop():
                    waiting.pop(action.link, None)
                case Send(message=Welcome()):
                    answered.discard("")
                case Send(message=Result(group=g) | Verdict(group=g)) if g:
                    answered.discard(g)
                case Send(message=Verdict()):
                    answered.clear()
                case Send(message=Lost(identity=identity)):
                    for name in list(answered):
                        if name and int(identity[1:]) in eval(name):
                            answered.discard(name)

    assert {} == {link: groups for link, groups in waiting.items() if groups}
    assert hub.next_deadline is None
