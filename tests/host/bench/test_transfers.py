"""Libraries that move bytes beside us: the same cases, what has arrived compared."""

import functools

import numpy as np
import pytest
from tests.host import warm

from stretto.bench import transfers
from stretto.bench.transfers import contest as contests
from stretto.bench.transfers import pair, peers, schemes
from stretto.bench.transfers.cases import Case
from stretto.bench.transfers.contest import Contender, Figure, Refusal, contest
from stretto.errors import StrettoError, UnknownNameError

pytestmark = [pytest.mark.host, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """Short turns: what is tested is that they are right. Processes start at once."""
    monkeypatch.setattr(contests, "_TURN_S", 0.01)
    for module in (contests, pair):
        monkeypatch.setattr(module, "subprocess", warm.stand_in())


def test_all_that_is_here_moves_the_same_bytes_and_who_is_not_is_said():
    """Every library that is installed, by its TCP; each case's bytes are compared."""
    cases = [
        Case(what="put", path="tcp", nbytes=5000),
        Case(what="get", path="tcp", nbytes=5000),
        Case(what="blocks", path="tcp", nbytes=96, count=40),
        Case(what="notify", path="tcp"),
    ]
    every = ("stretto", *peers.expand(["all"]))
    found = list(contest(every, "tcp", cases, turns=1))

    figures = {(f.who, f.case.label): f for f in found if isinstance(f, Figure)}
    refused = {f.who: f.why for f in found if isinstance(f, Refusal)}
    assert all(f.is_right and f.seconds[0] > 0 for f in figures.values())
    for name in every:
        why = peers.get(name).missing()
        whats = [c for c in cases if c.what in peers.get(name).WHATS]
        measured = [label for who, label in figures if who == name]
        assert ([] if why else [c.label for c in whats]) == measured
        if why:
            assert why == refused[name]
    assert ("stretto", "blocks 40 x 96") in figures


@pytest.mark.parametrize("path", ["shared", "cross-memory"])
def test_bytes_that_did_not_arrive_are_wrong(path):
    """Before the first round nothing is there; after one, all of it."""
    with Contender("stretto", path, 1 << 16) as ours:
        for what in ("put", "get"):
            case = Case(what=what, path=path, nbytes=1 << 16)
            ours.fill(case)
            assert not ours.check(case)
            ours.turn(case, 1)
            assert ours.check(case)


def test_a_side_that_fails_is_named_with_what_it_printed():
    """And has ended."""
    with Contender("stretto", "shared", 64) as ours:
        ours._children["there"].kill()
        with pytest.raises(StrettoError, match=r"stretto, there: .*printed"):
            ours.turn(Case(what="put", path="shared", nbytes=64), 1)


def test_the_result_of_a_case_follows_from_it():
    """Blocks lie where the order says; two cases do not share bytes."""
    case = Case(what="blocks", path="tcp", nbytes=8, count=5)
    blocks = case.source().reshape(5, 8)
    result = case.result().reshape(5, 8)
    for nth, to in enumerate(case.order):
        assert np.array_equal(blocks[nth], result[to])
    other = Case(what="blocks", path="tcp", nbytes=16, count=5)
    assert not np.array_equal(other.source()[:40], case.source())
    with pytest.raises(UnknownNameError, match="case"):
        Case(what="putt", path="tcp")
    with pytest.raises(UnknownNameError, match=r"did you mean gloo\?|gloo"):
        peers.expand(["glo"])


def test_schemes_give_rows(monkeypatch):
    """Of those that nobody is beside, by shared memory, of a small size."""
    some = ("many-to-one", "one-to-many", "tp-mismatch", "kv")
    monkeypatch.setattr(schemes, "timed", functools.partial(pair.timed, budget_s=0.01))
    rows = list(transfers.measure(some, paths=("shared",), sizes=(64,)))
    assert set(some) == {row.scheme for row in rows}
    assert all(row.is_right and row.us > 0 for row in rows)
    whats = [row.what for row in rows if row.scheme == "tp-mismatch"]
    assert any("2 ranks to 4" in what for what in whats)
