"""Sources and replicas to which something happens: it is named, and nothing torn."""

import re
import threading

import numpy as np
import pytest
from tests.host.weights.models import both, fill, some, step
from tests.waiting import until

from stretto import weights
from stretto.errors import (
    CallError,
    ChecksumError,
    EngineLost,
    LayoutError,
    TransferError,
    TransferTimeout,
)
from stretto.weights import Cat, Float8, Part, Version
from stretto.weights.copies import Copy
from stretto.weights.member import Member
from stretto.weights.memory import HostMemory
from stretto.weights.pulling import Puller

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 30


@pytest.mark.parametrize(
    ("theirs", "how", "said"),
    [
        ({"v": np.zeros((8, 4), np.float32)}, {}, "'v' here comes from 'v', which"),
        (
            {"w": np.zeros((8, 5), np.float32)},
            {},
            r"\(8, 5\); the source gives \(8, 4\)",
        ),
        ({"w": np.zeros((8, 4), np.float16)}, {}, "float16, 'w' at the source float32"),
        (
            {"x": np.zeros((8, 4), np.float32)},
            {"names": {"x": Cat("w", "w")}},
            r"\(8, 4\); the source gives \(16, 4\)",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_a_byte_moves(engines, theirs, how, said):
    """With both sides; whoever waits hears of it, and nothing is written."""
    source, policy = both(engines, theirs=theirs, **how)
    source.push()

    with pytest.raises(LayoutError, match=f"(?s){said}"):
        policy.wait(timeout=WAIT)
    assert not any(one.any() for one in theirs.values())


def test_a_version_that_goes_back_is_refused(engines):
    """Numbers of an epoch grow."""
    source, _ = both(engines)
    source.push(5)

    with pytest.raises(
        CallError, match=r"version 5 after 5; versions of an epoch grow"
    ):
        source.push(5)


def test_what_is_pushed_before_a_replica_has_answered_is_heard(engines):
    """The source knows nobody yet whom it could tell; the first push is the last."""
    policy = engines.replica(some(0.0))
    engine, gate = engines.engine("trainer", policy.engine), threading.Event()
    policy.engine.loop.call(lambda: gate.wait(WAIT))
    with weights.publish(engine, "policy", some(1.0)) as source:
        source.push(0)
        gate.set()
        policy.wait(0, WAIT)


def test_a_foreign_epoch_has_no_age(engines):
    """It is refused with both named, until it is adopted."""
    source, policy = both(engines, some(1.0))
    source.push(wait=True, timeout=WAIT)
    source.close()
    second = engines.source(some(2.0), policy.engine, epoch="other")
    second.push(0)
    until(lambda: policy._lead.foreign is not None)
    with policy.step() as version:
        assert source.epoch == version.epoch
    with pytest.raises(
        CallError, match=r"other:0 is offered.*policy\.adopt\('other'\)"
    ):
        policy.wait(1, WAIT)
    policy.adopt("other")
    until(lambda: policy.version.epoch == "other")

    with policy.step():
        assert 2.0 == policy.tensors["w"].max()
    with pytest.raises(CallError, match="foreign epoch has no age"):
        version.behind(policy.version)


def test_two_sources_of_a_name_are_refused(engines):
    """Who came second is told, by name; who was first goes on."""
    source, policy = both(engines, some(1.0))
    source.push(wait=True, timeout=WAIT)
    second = engines.source(some(2.0), policy.engine, epoch="other")
    until(lambda: second._refused)

    with pytest.raises(
        CallError, match=r"have two sources: engine 'replica-.*trainer-"
    ):
        second.push()
    source.push(wait=True, timeout=WAIT)
    assert 1 == policy.version.counter
    source.close()
    until(lambda: not second._refused)  # it is heard now
    second.push(9)
    until(lambda: policy._lead.foreign is not None)


def test_memory_that_is_too_small_is_said_in_bytes(engines):
    """Before anything is taken."""
    with pytest.raises(
        CallError, match="a second copy takes 164 bytes, and memory=100 "
    ):
        engines.replica(some(), memory=100)


def test_wrong_bytes_are_noticed_before_a_switch(engines, monkeypatch):
    """The old version stays, whole; which tensor differs is said."""
    source, policy = both(engines, some(1.0))
    source.push(wait=True, timeout=WAIT)
    landed = Copy.landed

    def wrong(self, far):
        self.arrays[[held.name for held in self.manifest.held].index("w")][3, 1] = 7.0
        landed(self, far)

    monkeypatch.setattr(Copy, "landed", wrong)
    source.push()
    until(lambda: policy.fault is not None)
    with policy.step() as version:
        assert 0 == version.counter
        assert 1.0 == policy.tensors["w"].max()
    assert isinstance(policy.fault, ChecksumError)
    assert re.search(r"version \w+:1: .*'w': sum \w+ here", str(policy.fault))


def test_a_source_that_ends_in_a_push_leaves_the_old_version(engines, monkeypatch):
    """A version is offered last: what was not offered was never there."""
    source, policy = both(engines, some(1.0))
    source.push(wait=True, timeout=WAIT)
    monkeypatch.setattr(Copy, "offer", lambda *_: source.engine.close())
    with pytest.raises(TransferTimeout, match="by any replica"):
        source.push(wait=True, timeout=0.1)
    until(lambda: not policy.known)
    with policy.step() as version:
        assert 0 == version.counter
        assert 1.0 == policy.tensors["w"].max()


def test_one_copy_that_is_in_pieces_stops_until_it_is_whole(engines, monkeypatch):
    """A pull that fails in the only copy: no step reads it; the next version does."""
    ours = some(1.0)
    source, policy = both(engines, ours, copies=1)
    source.push(wait=True, timeout=WAIT)
    begin = Puller._begin

    def failing(self, *given):
        begin(self, *given)[0].wait(WAIT)
        raise TransferError("the wire is cut")

    monkeypatch.setattr(Puller, "_begin", failing)
    fill(ours, 2.0)
    source.push()
    until(lambda: policy._lead.state.has_stopped)
    with pytest.raises(TransferError, match=r"half a version in it .*the wire is cut"):
        step(policy)
    monkeypatch.undo()
    fill(ours, 3.0)
    source.push(wait=True, timeout=WAIT)

    with policy.step():
        assert 3.0 == policy.tensors["w"].min()


def test_a_replica_without_one_of_its_ranks_is_broken(engines):
    """Whoever steps hears who is gone."""
    source = engines.source(some(1.0))
    first = engines.replica(some(), source.engine, replica="r", num_ranks=2)
    second = engines.replica(
        some(), source.engine, first.engine, replica="r", rank=1, num_ranks=2
    )
    source.push(wait=True, timeout=WAIT)
    with first.step() as one, second.step(WAIT) as other:
        assert one == other
    step(first)
    second.engine.close()
    until(lambda: first._broken is not None)

    with pytest.raises(EngineLost, match="rank 1 of replica 'r' is gone"):
        step(first)


def test_steps_that_were_named_are_run_though_the_leader_is_gone(engines):
    """The others come to the end of what it began, and then hear of it."""
    source = engines.source(some(1.0))
    first = engines.replica(some(), source.engine, replica="r", num_ranks=2)
    second = engines.replica(
        some(), source.engine, first.engine, replica="r", rank=1, num_ranks=2
    )
    source.push(wait=True, timeout=WAIT)
    step(first)
    first.close()
    first.engine.close()
    until(lambda: second._broken is not None)
    step(second)

    with pytest.raises(EngineLost, match="rank 0 of replica 'r' is gone"):
        step(second)


def test_slow_readers_are_fenced_off(engines, monkeypatch):
    """Who reads longer than the trainer has patience takes the next version."""
    ours = some(1.0)
    source = engines.source(ours, patience=0.05)
    policy = engines.replica(some(), source.engine)
    begin, waits = Puller._begin, []

    def slow(self, *given):
        if not waits:
            waits.append(1)
            until(lambda: len(waits) > 1)
        return begin(self, *given)

    monkeypatch.setattr(Puller, "_begin", slow)
    source.push()
    until(lambda: waits)
    fill(ours, 2.0)
    source.push()
    waits.append(2)

    assert 1 == policy.wait(1, WAIT).counter
    with policy.step():
        assert 2.0 == policy.tensors["w"].min()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda e: weights.publish(e, "", some()), "want a name"),
        (lambda e: weights.publish(e, "x", some(), rank=2, num_ranks=2), "rank=2 of 2"),
        (lambda e: weights.publish(e, "x", {}), "no tensors that have elements"),
        (lambda e: weights.publish(e, "x", 5), "want a module, or a mapping"),
        (lambda e: weights.publish(e, "x", some(), epoch="a b"), "epoch 'a b'"),
        (lambda e: weights.subscribe(e, "x", into=some(), copies=3), "copies=3"),
        (
            lambda e: weights.subscribe(e, "x", into=some(), names={"w": 3}),
            "'w' is mapped to a int",
        ),
        (
            lambda e: weights.publish(e, "x", some(), layouts={"w": "R=9 C=4 float32"}),
            r"has shape \(8, 4\)",
        ),
        (lambda e: weights.publish(e, "x", some(), layouts=3), "layouts=3"),
        (lambda e: weights.publish(e, "x", some(), cast=3), "cast to a int"),
        (lambda e: weights.publish(e, "x", some(), cast={"w": 3}), "'w': cast to"),
        (lambda e: Float8(block=(8,)), "block="),
        (lambda e: weights.subscribe(e, "x", into=some(), names=3), "names=3"),
        (lambda e: weights.subscribe(e, "x", into=some(), start=3), "start=3"),
        (lambda e: weights.subscribe(e, "x", into=some(), memory="1"), "memory='1'"),
        (lambda e: weights.subscribe(e, "x", into=some(), copys=1), "copys= is no"),
        (
            lambda e: weights.subscribe(
                e, "x", into=some(), names="vllm/llama", kv_head=2
            ),
            "kv_head= is no argument .* takes rank, of, kv_heads",
        ),
        (lambda e: Version.parse("x"), "no version; want EPOCH:COUNTER"),
        (lambda e: Part("w", box=((0, 1),)).tiles({"w": (2, 2)}), "of shape"),
    ],
)
def test_bad_input_is_refused_in_words(engines, call, said):
    """What was got, and what is wanted."""
    with pytest.raises(CallError, match=said):
        call(engines.engine("bad"))


@pytest.mark.parametrize("what", ["a grant", "a pull"])
def test_what_did_not_come_in_time_is_asked_for_again(engines, monkeypatch, what):
    """A source that was busy elsewhere for longer than a replica's patience."""
    owner, name = (Member, "_hold") if what == "a grant" else (Puller, "pull")
    inner, calls = getattr(owner, name), []

    def once_in_vain(self, *given):
        calls.append(self)
        if len(calls) > 1:
            return inner(self, *given)
        if what == "a pull":
            raise TransferError("the wire is cut")
        return None

    monkeypatch.setattr(owner, name, once_in_vain)
    source = engines.source(some(1.0))
    policy = engines.replica(some(), source.engine, patience=0.1)
    source.push(wait=True, timeout=WAIT)

    assert len(calls) >= 2
    assert 0 == policy.version.counter


def test_nothing_is_written_once_a_replica_is_closed(engines, monkeypatch):
    """Also when a version is coming: it is cut off, and shared with nobody."""
    begun, may_go, inner = threading.Event(), threading.Event(), Puller._begin

    def slow(self, *given):
        begun.set()
        assert may_go.wait(WAIT)
        return inner(self, *given)

    monkeypatch.setattr(Puller, "_begin", slow)
    source, policy = both(engines, some(1.0), into := some(-1.0), copies=1)
    source.push()
    assert begun.wait(WAIT)
    closing = threading.Thread(target=policy.close)
    closing.start()
    until(lambda: policy.puller._has_stopped)
    may_go.set()
    closing.join(WAIT)

    assert not closing.is_alive()
    assert not any(c.version or c.coming or c._regions for c in policy.copies)
    for array in into.values():
        array[...] = 7.0
    policy.close()  # again: nothing is left to do
    step_of(policy, CallError)
    assert all((array == 7.0).all() for array in into.values())


def test_memory_is_given_back_once(engines, monkeypatch):
    """However often one closes: a GPU's may be somebody else's by then."""
    given = []
    monkeypatch.setattr(HostMemory, "close", lambda self: given.append(self))
    pair = both(engines)
    for one in (*pair, *pair):
        one.close()

    assert 2 == len(given) == len(set(given))


def step_of(policy, kind):
    with pytest.raises(kind, match="closed"):
        step(policy)


def late(policy):
    try:
        with policy.step(0.2):
            return False
    except TransferTimeout:
        return True


def test_the_leader_does_not_run_away_from_a_rank_that_is_slow(engines):
    """It waits, and says so: else old versions are read for thousands of steps."""
    source = engines.source(some(1.0))
    first = engines.replica(some(), source.engine, replica="r", num_ranks=2)
    second = engines.replica(
        some(), source.engine, first.engine, replica="r", rank=1, num_ranks=2
    )
    source.push(wait=True, timeout=WAIT)
    begun = 0
    while begun < 1000 and not late(first):
        begun += 1
    for _ in range(begun):
        step(second)
    with first.step(WAIT) as one, second.step(WAIT) as other:
        assert one == other

    assert 8 <= begun <= 16
