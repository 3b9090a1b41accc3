"""Libraries that move bytes beside us: the same cases, what has arrived compared."""

import contextlib
from functools import partial

import numpy as np
import pytest
from tests.host import warm

from stretto.bench import child, peers, transfers
from stretto.bench.contender import Contender, PreparedCall
from stretto.bench.peers._side import MovingSide
from stretto.bench.timing import each_us
from stretto.bench.transfers import contest as contests
from stretto.bench.transfers.contest import Couple, Refusal, TransferRow, contest
from stretto.bench.workload.moves import MoveCase
from stretto.errors import PeerLost, StrettoError, UnknownNameError

pytestmark = [pytest.mark.host, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """Short turns: what is tested is that they are right. Processes start at once."""
    monkeypatch.setattr(contests, "TURN_US", 1e4)
    monkeypatch.setattr(child, "subprocess", warm.stand_in())


def test_all_that_is_here_moves_the_same_bytes_and_who_is_not_is_said():
    """Every library that is installed, by its TCP; each case's bytes are compared."""
    cases = [
        MoveCase(what="put", path="tcp", nbytes=5000),
        MoveCase(what="get", path="tcp", nbytes=5000),
        MoveCase(what="blocks", path="tcp", nbytes=96, count=40),
        MoveCase(what="notify", path="tcp"),
    ]
    every = ("stretto", *peers.expand(["all"], MovingSide))
    found = list(contest(every, "tcp", cases, turns=1))

    figures = {(f.who, f.what): f for f in found if isinstance(f, TransferRow)}
    refused = {f.who: f.why for f in found if isinstance(f, Refusal)}
    assert all(f.is_right and 0 < f.us <= f.p99_us for f in figures.values())
    for name in every:
        kind = peers.get(name, MovingSide)
        why = kind.missing()
        whats = [c for c in cases if c.what in kind.WHATS]
        measured = [label for who, label in figures if who == name]
        assert ([] if why else [c.label for c in whats]) == measured
        if why:
            assert why == refused[name]
    assert ("stretto", "blocks 40 x 96") in figures


@contextlib.contextmanager
def couple(*about):
    """Return a library's two processes, which have met."""
    with contextlib.closing(Couple(*about)) as made:
        made.meet()
        yield made


@pytest.mark.parametrize("path", ["shared", "cross-memory"])
def test_bytes_that_did_not_arrive_are_wrong(path):
    """Before the first round nothing is there; after one, all of it."""
    with couple("stretto", path, 1 << 16) as ours:
        for what in ("put", "get"):
            case = MoveCase(what=what, path=path, nbytes=1 << 16)
            ours.fill(case)
            assert ours.wrong(case)
            ours.turn(case, 1)
            assert not ours.wrong(case)


def test_a_side_that_fails_is_named_with_what_it_printed():
    """And has ended."""
    with couple("stretto", "shared", 64) as ours:
        ours._sides["there"]._process.kill()
        with pytest.raises(StrettoError, match=r"stretto, there: .*printed"):
            ours.turn(MoveCase(what="put", path="shared", nbytes=64), 1)


class Made(Contender):
    """A contender without processes, whose calls do what they are told to."""

    def __init__(self, call, wrong=""):
        self.call, self.said = call, wrong

    def prepare(self, case, x, out):
        return PreparedCall(
            call=self.call, rounds=partial(each_us, self.call), wrong=lambda: self.said
        )


def fails_after(calls):
    """Return a call that fails when it has been made so often."""
    left = iter(range(calls))

    def call():
        if next(left, None) is None:
            raise PeerLost("its process has ended")

    return call


@pytest.mark.parametrize("calls", [0, 1, 3, 20])
def test_who_fails_or_is_wrong_says_so_and_the_others_are_measured(calls):
    """At the first call, while calibrating, or between two turns."""
    case = MoveCase(what="put", path="shared", nbytes=8)
    running = {
        "fails": Made(fails_after(calls)),
        "liar": Made(lambda: None, wrong="what has arrived is not what was sent"),
        "works": Made(lambda: None),
    }

    found = contests.in_turns(running, case, turns=2)
    rows = {name: contests.row_of(name, case, one) for name, one in found.items()}

    assert "PeerLost: its process has ended" == rows["fails"].why
    assert found["fails"].broke_at is not None
    assert [False, True] == [rows[name].is_right for name in ("liar", "works")]
    assert 1 == len(found["works"].us)
    assert found["works"].us.size >= 2  # as many in each turn as the machine is fast


def test_the_result_of_a_case_follows_from_it():
    """Blocks lie where the order says; two cases do not share bytes."""
    case = MoveCase(what="blocks", path="tcp", nbytes=8, count=5)
    blocks = case.source().reshape(5, 8)
    result = case.result().reshape(5, 8)
    for nth, to in enumerate(case.order):
        assert np.array_equal(blocks[nth], result[to])
    other = MoveCase(what="blocks", path="tcp", nbytes=16, count=5)
    assert not np.array_equal(other.source()[:40], case.source())
    with pytest.raises(UnknownNameError, match="case"):
        MoveCase(what="putt", path="tcp")
    with pytest.raises(UnknownNameError, match=r"did you mean gloo\?|gloo"):
        peers.expand(["glo"], MovingSide)


def test_schemes_give_rows():
    """Of those that nobody is beside, by shared memory, of a small size."""
    some = ("many-to-one", "tp-mismatch")
    rows = list(transfers.measure(some, paths=("shared",), sizes=(64,)))
    assert set(some) == {row.scheme for row in rows}
    assert all(row.is_right and row.us > 0 for row in rows)
    whats = [row.what for row in rows if row.scheme == "tp-mismatch"]
    assert any("2 ranks to 4" in what for what in whats)
