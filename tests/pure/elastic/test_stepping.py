"""A step is committed by all who are left or by none, in every order of events."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.elastic.stepping import Rules, begin, explore

from stretto.elastic.job import LaunchedJob
from stretto.fabric.messages import Errand
from stretto.runtime.calls import Elastic
from stretto.runtime.calls.committing import (
    StepReport,
    StepVerdict,
    agreed_change,
    flag_of,
    judge,
)
from stretto.runtime.calls.spares import READY
from stretto.torch.elastic.policy import Planned


@pytest.mark.parametrize(
    ("crashes", "stops", "last"),
    [
        (1, 0, 2),
        (0, 1, 1),
        pytest.param(2, 0, 2, marks=pytest.mark.slow),
        pytest.param(1, 1, 1, marks=pytest.mark.slow),
        pytest.param(0, 2, 1, marks=pytest.mark.slow),
    ],
)
def test_no_order_of_events_leaves_ranks_with_different_models(crashes, stops, last):
    """Three ranks and a standby, of whom any two die or stop at any point."""
    states, ends = explore(begin(crashes=crashes, stops=stops), Rules(last=last))

    assert states > 1000
    assert ends > 10


def each_for_itself(mine, others):
    """Undo what oneself has not committed, whatever others have."""
    return StepVerdict.UNDO


def trusting(mine, others):
    """Commit whenever another has, with gradients or without."""
    most = max([mine.step, *(one.step for one in others)])
    return StepVerdict.COMMIT if most > mine.step or mine.entered else StepVerdict.UNDO


@pytest.mark.parametrize(
    ("rules", "stops", "found"),
    [
        (Rules(judge=each_for_itself), 0, "drifted apart|waits for ever|without"),
        (Rules(judge=trusting), 0, "drifted apart|waits for ever|not whole|without"),
        (Rules(sees_gone=False), 1, "left out may write"),
    ],
)
def test_rules_that_look_as_good_are_found_out(rules, stops, found):
    """Each for itself; whoever entered; and a switch before who is gone was seen."""
    with pytest.raises(AssertionError, match=found):
        explore(begin(crashes=1 - stops, stops=stops), rules)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6))
def test_whoever_goes_on_is_where_the_furthest_is(said):
    """After its verdict; who cannot be there stops, and then somebody was two ahead."""
    reports = [StepReport(step=step, entered=entered) for step, entered in said]
    most = max(one.step for one in reports)
    for i, mine in enumerate(reports):
        found = judge(mine, reports[:i] + reports[i + 1 :])
        if found is StepVerdict.STOP:
            assert most > mine.step + mine.entered
        else:
            assert most == mine.step + (found is StepVerdict.COMMIT)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_a_change_is_agreed_where_all_have_heard_of_the_same(heard):
    """The least of all flags tells every rank the same."""
    flags = [flag_of(one) for one in heard]
    least = [min(column) for column in zip(*flags, strict=True)]

    assert (heard[0] if len(set(heard)) == 1 else 0) == agreed_change(least)


def test_the_only_one_that_has_the_state_is_not_replaced_by_order():
    """It says so; nobody is dismissed, and no step is broken."""
    said = {}
    standing = SimpleNamespace(
        identities=("a", "b"),
        identity="b",
        dismissed=set(),
        tell=lambda **more: said.update(more),
    )
    part = SimpleNamespace(standing=standing, somebody_is_whole=lambda but: False)
    order = Errand(verb="replace", about=("a",), said={"order": "one"})

    planned = Planned(part)
    planned.hear(order)
    assert {"refused": "nobody but rank 0 has the state", "order": "one"} == said
    assert set() == standing.dismissed

    planned.hear(Errand(verb="replace", about=(), said={}))
    assert "" == said["refused"]


def test_no_more_ranks_are_suggested_than_there_may_be():
    """The first rank says why not; of three that may be, two and one are suggested."""
    said, suggested = {}, []
    standing = SimpleNamespace(
        identities=("a", "b"),
        identity="a",
        generation=4,
        gone={},
        facts={"c": {READY: True}},
        standbys=("c",),
        tell=lambda **more: said.update(more),
        suggest=lambda order, **more: suggested.append(order),
    )
    elastic = Elastic(max_ranks=3)
    part = SimpleNamespace(standing=standing, stands_by=False, elastic=elastic)
    planned = Planned(part)
    planned.hear(Errand(verb="grow", about=(), said={"n": 2}))
    assert "grow(2): 4 ranks; want at most max_ranks=3 of Elastic" == said["refused"]
    planned.hear(Errand(verb="grow", about=(), said={"n": 1}))
    assert [["a", "b", "c"]] == suggested
    assert "" == said["refused"]


@pytest.mark.parametrize(("asked", "started"), [(1, 1), (2, 0), (0, 0), ("one", 0)])
def test_a_launcher_starts_nobody_whom_the_ranks_refuse(asked, started):
    """Two of three ranks are there."""
    said = []
    job = object.__new__(LaunchedJob)
    job._first, job._start = 2, lambda *who: said.append(who)
    job._wanted = SimpleNamespace(elastic=Elastic(max_ranks=3), standbys=())
    generations = SimpleNamespace(newest=("a", "b"))
    job.world = SimpleNamespace(generations=generations)
    job._hear(Errand(verb="grow", about=(), said={"n": asked}))

    assert started == len(said)
