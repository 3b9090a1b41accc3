"""Who may take a place beside whom, by what members say of themselves."""

import itertools
from types import SimpleNamespace

import pytest

from stretto import executors
from stretto.errors import DeviceError
from stretto.runtime.calls.spares import (
    lost_of,
    ready_of,
    spare_of,
    state_of,
    tell_asked,
    tell_opened,
    unsaid,
)


def standing_of(ranks, standbys, **facts):
    """Return what a member knows: who is there, and what each says."""
    return SimpleNamespace(
        identities=tuple(ranks),
        standbys=tuple(standbys),
        generation=3,
        gone={},
        dismissed=set(),
        facts={i: dict(facts.get(i, {})) for i in (*ranks, *standbys)},
    )


def on(gpu, **more):
    """Return what a member says that stands on a GPU."""
    return {"stands_on": {"cuda": gpu}, **more}


def test_who_has_not_said_that_it_is_ready_takes_no_place():
    """Others hear that it has come before it can say that it still warms up."""
    facts = {"b": {"ready": False}, "c": {"ready": True}}
    standing = standing_of("r", "abc", **facts)

    assert ["c"] == spare_of(standing, "r") == ready_of(standing)
    said = [state_of(i, "r", standing.facts) for i in "abc"]
    assert ["warms up", "warms up", "stands by"] == said


def test_nobody_is_chosen_beside_one_that_stands_on_the_same():
    """For each set of lost ranks and any GPUs of three standbys: all differ after."""
    for gpus in itertools.product("1234", repeat=3):
        facts = {r: on(g) for r, g in zip("abc", "123", strict=True)}
        facts |= {s: on(g, ready=True) for s, g in zip("xyz", gpus, strict=True)}
        standing = standing_of("abc", "xyz", **facts)
        for many in range(4):
            for lost in itertools.combinations("abc", many):
                found = spare_of(standing, lost)
                stays = [r for r in "abc" if r not in lost]
                used = [facts[i]["stands_on"]["cuda"] for i in stays + found]
                assert len({*used}) == len(used)
                free = {*gpus} - {facts[i]["stands_on"]["cuda"] for i in stays}
                assert len(found) == len(free)


@pytest.mark.parametrize(
    ("gpu", "state"),
    [
        ("1", "stands by for rank 0 alone: rank 0 stands on cuda 1, too"),
        ("2", "fits no place: ranks 1, 2 stand on cuda 2, too"),
        ("3", "stands by"),
        ("", "stands by"),
    ],
)
def test_whoever_looks_is_told_which_places_are_taken(gpu, state):
    """One that says nothing of a GPU yet is not asked to take a place beside one."""
    facts = {"a": on("1"), "b": on("2"), "c": on("2"), "x": on(gpu, ready=True)}
    standing = standing_of("abc", "xy", y={"ready": True}, **facts)
    assert state == state_of("x", "abc", standing.facts)
    assert "warms up" == state_of("y", "abc", standing.facts)


@pytest.mark.parametrize("nonsense", [7, "all", ["a"], {"a": {"b": 1}}, None])
def test_what_makes_no_sense_is_said_for_nothing(nonsense):
    """Others say it: whoever hears it goes on."""
    facts = {"a": {"stands_on": nonsense}, "x": {"ready": True, "unfit": None}}
    standing = standing_of("a", "x", **facts)
    assert set() == lost_of(standing)
    assert spare_of(standing, "a") == ["x"]


def test_who_cannot_be_a_rank_is_lost_and_is_never_chosen():
    """Whoever says so, of itself or of another."""
    standing = standing_of("ab", "x", x={"ready": True}, a={"unfit": {"x": "no GPU"}})
    assert [] == spare_of(standing, "b") == ready_of(standing)
    assert "cannot serve: no GPU" == state_of("x", "ab", standing.facts)
    standing.facts["x"]["unfit"] = {"b": "no memory"}
    assert {"b"} == lost_of(standing)


def test_one_that_stands_by_says_what_ranks_of_its_executors_want(monkeypatch):
    """Or why it cannot be one; of other executors it says nothing."""
    told = {}
    standing = standing_of("a", "x", a=on("1"))
    standing.identity, standing.told = "x", told
    standing.tell = lambda **said: told.update(said)
    assert ["cuda"] == unsaid(standing)
    here = SimpleNamespace(stands_on=lambda: "2")
    monkeypatch.setattr(executors, "get", lambda name: here)
    tell_asked(standing)
    assert {"stands_on": {"cuda": "2"}} == told
    assert [] == unsaid(standing)

    def fails():
        raise DeviceError("no CUDA device is visible")

    told.clear()
    here.stands_on = fails
    tell_asked(standing)
    assert {"x": "no CUDA device is visible"} == told["unfit"]
    assert [] == unsaid(standing)


def test_a_rank_says_what_it_stands_on_once_and_nothing_of_what_all_may_use(
    monkeypatch,
):
    """Each of its executors, beside those that it has told of."""
    things, said = {"cuda": "2", "cpu": "", "own": "9"}, []
    standing = standing_of("a", "")
    standing.told = told = {}
    standing.tell = lambda **more: said.append(more) or told.update(more)
    one = lambda name: SimpleNamespace(stands_on=lambda: things[name])  # noqa: E731
    monkeypatch.setattr(executors, "get", one)
    for name in ("cpu", "cuda", "cuda", "own"):
        tell_opened(standing, name)
    assert {"stands_on": {"cuda": "2", "own": "9"}} == told
    assert 2 == len(said)
