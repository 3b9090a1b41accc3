"""Which versions of others can be had: whole ones, and those that come to them."""

from types import SimpleNamespace

import pytest

from stretto.weights.member import Who
from stretto.weights.offers import offers
from stretto.weights.version import Version

ONE, TWO = "run:1", "run:2"


def who(team, rank=0, of=1, version="", coming="", via=()):
    """Return a rank that has said hello."""
    said = {
        "team": team, "rank": rank, "of": of, "metadata": {}, "version": version,
        "coming": coming, "via": list(via),
    }  # fmt: skip
    return Who(SimpleNamespace(identity=f"{team}{rank}"), said)


def found(*known, ours="us"):
    """Return what is offered, in short."""
    return [
        (o.team, str(o.version), "whole" if o.is_whole else "/".join(o.via) or "coming")
        for o in offers(known, ours)
    ]


def test_what_all_ranks_have_is_whole():
    """Not what one of them lacks, or has another of; nor what is our own."""
    assert [("", ONE, "whole")] == found(who("", version=ONE))
    assert [] == found(who("a", 0, 2, ONE))
    assert [] == found(who("a", 0, 2, ONE), who("a", 1, 2, TWO))
    assert [] == found(who("us", version=ONE))


def test_what_comes_to_all_ranks_can_be_followed():
    """To each of them, unless it has switched already."""
    one, two = who("a", 0, 2, ONE, TWO), who("a", 1, 2, TWO)
    assert [("a", TWO, "coming")] == found(one, two)
    assert [("a", ONE, "whole"), ("a", TWO, "coming")] == found(
        who("a", 0, 2, ONE, TWO), who("a", 1, 2, ONE, TWO)
    )
    assert [] == found(who("a", 0, 2, "", TWO), who("a", 1, 2))
    assert [] == found(who("a", 0, 2, "", TWO), who("a", 1, 2, "", ONE))


def test_nobody_follows_who_follows_him():
    """By however many others: all of them would wait for ever."""
    assert [("b", ONE, "a/c")] == found(who("b", coming=ONE, via=["a", "c"]))
    assert [] == found(who("b", coming=ONE, via=["a", "us", "c"]))
    some = who("b", 0, 2, coming=ONE, via=["a"]), who("b", 1, 2, coming=ONE, via=["us"])
    assert [] == found(*some)  # one of its ranks has it all, from an earlier attempt


@pytest.mark.parametrize(("many", "is_offered"), [(63, True), (64, False)])
def test_a_line_is_not_endless(many, is_offered):
    """What passes through many takes long to be known to be right."""
    via = [f"r{i}" for i in range(many)]
    assert is_offered == bool(found(who("b", coming=ONE, via=via)))


def test_what_was_refused_is_not_to_be_had():
    """Until whoever refused it says again what he has."""
    one = who("a", version=ONE, coming=TWO)
    one.withdraw(Version.parse(TWO))
    assert [("a", ONE, "whole")] == found(one)
    one.withdraw(Version.parse(ONE))
    assert [] == found(one)
