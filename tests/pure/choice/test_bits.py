"""Invariant bits: which plans are chosen, and which are passed over."""

import itertools
from dataclasses import replace

import pytest
from tests.nightly import nightly

from stretto.compiler.verify import orders
from stretto.errors import CallError
from stretto.program import algorithms
from stretto.runtime.calls.choosing import check_bits
from stretto.runtime.choice import Beside, Choice, Profile, Question, Selector
from stretto.runtime.choice.plans import plan_of

SIZES = tuple(1 << k for k in range(3, 31, 3))
RINGS = """
executor = "{0}"
[[rule]]
collective = "all_reduce"
memory = "{1}"
ranks = [2, 64]
sizes = [["1T", "all_reduce/ring push bulk {1}"]]
"""


def question(nbytes, num_ranks=4, **how):
    said = {"executor": "cpu", "bits": "invariant", **how}
    return Question(collective="all_reduce", num_ranks=num_ranks, nbytes=nbytes, **said)


@pytest.mark.parametrize(
    ("executor", "memory", "pin", "profiled"),
    nightly(  # of every third case, any two parameters have all their pairs
        itertools.product(
            ["cpu", "cuda"], ["staged", "zero_copy"], [None, Beside()], [True, False]
        ),
        3,
    ),
)
def test_whatever_is_chosen_adds_in_rank_order(executor, memory, pin, profiled):
    """For all sizes, by profiles that say otherwise, or by none: one tree for all."""
    profile = Profile.parse(RINGS.format(executor, memory), "here")
    selector = Selector(executor, profile)
    if not profiled:
        selector._profiles = []
    trees = set()
    for num_ranks in (2, 4, 8):
        for nbytes in SIZES:
            for in_place in (True, False):
                how = {"memory": memory, "executor": executor, "in_place": in_place}
                asked = question(nbytes, num_ranks, **how)
                found = orders(plan_of(selector.choose(asked, pin), asked))
                assert found.rank_order
                trees.add((num_ranks, found.trees))

    assert 3 == len(trees)


@pytest.mark.parametrize("executor", ["cpu", "cuda"])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("memory", ["staged", "zero_copy"])
def test_whatever_is_chosen_adds_in_pairs(executor, collective, memory):
    """One tree for each number of ranks, whatever the size."""
    selector = Selector(executor)
    trees = set()
    for num_ranks in (2, 4, 8):
        for nbytes in SIZES:
            asked = replace(
                question(nbytes, num_ranks, executor=executor, memory=memory),
                collective=collective,
                bits="pairs",
            )
            found = orders(plan_of(selector.choose(asked), asked))
            assert found.pairs
            trees.add((num_ranks, found.trees))

    assert 3 == len(trees)


@pytest.mark.parametrize(
    "hosts", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1), (0, 1, 2, 3)]
)
def test_over_hosts_bits_are_those_of_one_host(hosts):
    """What adds each host first is passed over."""
    selector = Selector("cpu")
    for nbytes in (1 << 10, 1 << 24):
        asked = question(nbytes, hosts=hosts)
        found = orders(plan_of(selector.choose(asked), asked))
        want = ("r0.input[0] + r1.input[0] + r2.input[0] + r3.input[0]",)
        assert (want, True, False) == (found)


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("ring", "in 4 orders"),
        ("rails", r"\(r0.input\[0\] \+ r1.input\[0\]\) \+ \(r2"),
    ],
)
def test_what_is_named_and_adds_otherwise_is_refused_in_one_sentence(name, order):
    """It says the order, and what would do."""
    asked = question(1 << 10, hosts=(0, 0, 1, 1))
    choice = Selector("cpu").choose(asked, f"all_reduce/{name}")

    with pytest.raises(CallError, match=f"{name} adds otherwise .*{order}.*want an"):
        check_bits(choice, asked, 0)


def test_a_kernel_by_hand_is_refused():
    """What it does is said by whoever wrote it, and not proved."""
    by_hand = replace(algorithms.get("all_reduce/one_shot"), kernel=object())
    plain = Selector("cpu").choose(question(1 << 10))
    with pytest.raises(CallError, match="one_shot is a kernel by hand: in which"):
        check_bits(Choice(by_hand, plain.schedule), question(1 << 10), 0)


def test_of_many_ranks_the_order_is_kept_as_proofs_are(monkeypatch, tmp_path):
    """One process finds it out; another reads it, and gets the same."""
    from stretto.runtime.choice import plans

    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    asked = question(1 << 10, 8)
    choice = Choice(
        algorithms.get("all_reduce/one_shot"), Selector("cpu").choose(asked).schedule
    )
    plans._orders.cache_clear()
    first = plans._orders(plans._wanted(choice, asked))
    plans._orders.cache_clear()
    monkeypatch.setattr(plans, "orders", None)

    assert first == plans._orders(plans._wanted(choice, asked))
    assert first.rank_order
