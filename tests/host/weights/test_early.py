"""A replica hands on what has come so far: who reads it, and what when it fails."""

import threading

import numpy as np
import pytest
from tests.waiting import until

from stretto.errors import TransferError
from stretto.weights import pulling
from stretto.weights.copies import Copy
from stretto.weights.early import FAILED
from stretto.weights.leading import Leads
from stretto.weights.pulling import Puller

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 30
PIECES = 16


def tensors(value=0.0):
    """Return tensors that are read in sixteen pieces."""
    return {name: np.full((8, 64), value, np.float32) for name in ("v", "w")}


class Gate:
    """Lets who reads from the trainer have so many pieces, and no more until opened."""

    def __init__(self, replicas, pieces=PIECES):
        self.replicas, self.left, self.may_go = replicas, pieces, threading.Event()
        self.error, self._first = None, None
        for policy in replicas:
            self._wrap(policy)

    def _wrap(self, policy):
        inner = policy.puller._begin

        def begin(peer, *given):
            if peer.name.startswith("trainer"):
                self._first = policy
                self.left -= 1
                if self.left < 0:
                    assert self.may_go.wait(WAIT)
                    if self.error is not None:
                        raise self.error
            return inner(peer, *given)

        policy.puller._begin = begin

    def open(self, error=None):
        """Let it read on, or fail."""
        self.error = error
        self.may_go.set()

    def order(self):
        """Return replicas as they are read from: the first one reads the trainer."""
        until(lambda: self._first is not None)
        until(lambda: all(far(p) > 0 for p in self.replicas))
        return sorted(self.replicas, key=lambda p: len(coming(p).via))


@pytest.fixture
def line(engines, monkeypatch):
    """Return a source that has time for one, and replicas that know one another."""
    monkeypatch.setattr(pulling, "_LEAST_PIECE", 64 * 4)
    monkeypatch.setattr(pulling, "_AHEAD", 1)
    monkeypatch.setattr(Puller, "_most", lambda self, pairs: self._far)

    def make(count, **how):
        source = engines.source(tensors(1.0), fan=1)
        replicas = []
        for nth in range(count):
            known = [policy.engine for policy in replicas]
            replicas.append(
                engines.replica(
                    tensors(), source.engine, *known, replica=f"r{nth}", **how
                )
            )
        for policy in replicas:
            until(lambda policy=policy: len(policy.known) == count)
        return source, replicas

    return make


def coming(policy):
    """Return the copy into which a replica reads, or has read."""
    return max(policy.copies, key=lambda copy: copy._far)


def far(policy):
    """Return how many bytes of a replica's version have come."""
    return coming(policy)._far if policy.copies else 0


def is_right(policy, value):
    """Whether a replica steps with a version."""
    policy.wait(timeout=WAIT)
    with policy.step():
        return all((array == value).all() for array in policy.tensors.values())


def test_what_comes_is_handed_on_before_it_is_whole(line):
    """Along a line of replicas; the next ones do not switch before the first."""
    source, replicas = line(3)
    gate = Gate(replicas, 9)
    source.push()
    one, two, three = gate.order()
    until(lambda: far(two) == far(three) == far(one))

    assert far(one) < coming(one).line.end
    assert [None] * 3 == [policy.version for policy in replicas]
    first, second = one.team, two.team
    ways = [coming(policy).via for policy in (one, two, three)]
    assert [(), (first,), (first, second)] == ways
    gate.open()
    assert all(is_right(policy, 1.0) for policy in replicas)


def held_back(monkeypatch):
    """Let who reads from the trainer compare, and so switch, only when that is set."""
    may_go, judge = threading.Event(), Leads._judge

    def late(self, attempt, asked, reports):
        assert asked.team or may_go.wait(WAIT)
        judge(self, attempt, asked, reports)

    monkeypatch.setattr(Leads, "_judge", late)
    return may_go


def test_who_has_all_of_it_waits_until_it_is_known_to_be_right(line, monkeypatch):
    """Its sums come from whoever handed it on, once he has switched."""
    source, replicas = line(2)
    gate, may_go = Gate(replicas), held_back(monkeypatch)
    source.push()
    one, two = gate.order()
    until(lambda: two._lead._reports)

    assert far(two) == coming(two).line.end
    assert two.version is None
    may_go.set()
    assert is_right(one, 1.0)
    assert is_right(two, 1.0)


def test_who_does_not_switch_is_not_waited_for(line, monkeypatch):
    """Beyond our patience; then it comes from elsewhere."""
    source, replicas = line(2, patience=0.5)
    gate, may_go = Gate(replicas), held_back(monkeypatch)
    source.push()
    one, two = gate.order()
    until(lambda: "did not say its sums" in str(two.fault))
    may_go.set()

    assert is_right(two, 1.0)
    assert is_right(one, 1.0)


def test_who_fails_says_so_to_whom_he_handed_it_on(line):
    """Both come to the version, by another way or at another time."""
    source, replicas = line(2, patience=0.5)
    gate = Gate(replicas, 5)
    source.push()
    one, two = gate.order()
    gate.open(TransferError("a cable was cut"))
    until(lambda: two.fault is not None or two.version is not None)
    gate.error = None

    assert is_right(two, 1.0)
    assert is_right(one, 1.0)


def test_who_leaves_is_not_waited_for(line):
    """Neither for more bytes nor for the sums."""
    source, replicas = line(2, patience=0.5)
    gate = Gate(replicas, 5)
    source.push()
    one, two = gate.order()
    closing = threading.Thread(target=one.close)
    closing.start()
    until(lambda: one.puller._has_stopped)
    gate.open()
    closing.join(WAIT)

    assert not closing.is_alive()
    assert is_right(two, 1.0)


def test_who_waits_for_more_ends_when_there_will_be_no_more(line):
    """At once, though whoever handed it on tries again much later."""
    source, replicas = line(2)
    gate = Gate(replicas, 5)
    source.push()
    _, two = gate.order()
    assert two._state.pulling is not None
    gate.open(TransferError("a cable was cut"))
    until(lambda: two._state.pulling is None, 5)

    assert two.fault is not None
    assert not two.puller._following._far


def is_judging():
    return any(one.name.endswith("-apart") for one in threading.enumerate())


@pytest.mark.parametrize("what", ["replica", "engine", "both"])
def test_who_leaves_before_it_is_known_to_be_right_is_not_waited_for(
    line, monkeypatch, what
):
    """The other has all of it by then, and compares it with what the trainer says.

    Who has left compares it, too, and does nothing with what comes out.
    """
    source, replicas = line(2)
    gate, may_go = Gate(replicas), held_back(monkeypatch)
    source.push()
    one, two = gate.order()
    until(lambda: two._lead._reports)
    for it in {"replica": [one], "engine": [one.engine]}.get(what, [one, one.engine]):
        it.close()
    until(lambda: two.fault is not None, 5)

    assert "handed it on, and its rank 0 is gone" in str(two.fault)
    may_go.set()
    assert is_right(two, 1.0)
    until(lambda: not is_judging())


def test_what_came_wrong_is_forgotten_by_all(line, monkeypatch):
    """It is not taken for what has come already: the next time all of it is read."""
    source, replicas = line(2, patience=0.5)
    pulls, landed = [], Copy.landed

    def wrong(self, far):
        if not pulls:
            self.arrays[0][0, 0] = 7.0
        if far == self.line.end:
            pulls.append(self.tag)
        landed(self, far)

    monkeypatch.setattr(Copy, "landed", wrong)
    source.push()

    assert all(is_right(policy, 1.0) for policy in replicas)
    assert len(pulls) >= 3


def test_a_token_of_nothing_is_answered(line):
    """Whoever asks too late hears that it will not come."""
    source, (one, two) = line(2)
    source.push(wait=True, timeout=WAIT)
    (peer,) = [w.peer for w in two.known.values() if w.team == one.team]
    following = two.puller._following
    following.watch(peer, b"x" * 16)
    until(lambda: following._far[peer.identity, b"x" * 16] == FAILED)

    with pytest.raises(TransferError, match="handed on what was to come, and that"):
        following.has(peer, b"x" * 16, 1)
