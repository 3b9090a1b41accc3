"""Only what has changed is read: byte for byte what a full gather says, or refused."""

import ml_dtypes
import numpy as np
import pytest
from tests.host.weights.models import summed
from tests.host.weights.test_referee import poisoned
from tests.pure.weights.random_models import Model
from tests.waiting import until

from stretto.errors import CallError, TransferError
from stretto.weights import Version, changes
from stretto.weights.changes import BlockMap, BoxTarget, NewElements, found_at, packed
from stretto.weights.copies import Copy
from stretto.weights.cover import Wanted
from stretto.weights.hashes import differences
from stretto.weights.manifest import Held, grouped
from stretto.weights.memory import HostMemory
from stretto.weights.pulling import From, Puller, parts_here
from stretto.weights.recent import Recent

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]
WAIT = 30


class Rank:
    """A source's rank that keeps what has changed in a copy that others read."""

    def __init__(self, engine, model, rank, name):
        self.engine, self.model, self.number, self.counter = engine, model, rank, 0
        self.manifest, groups = model.rank(rank)
        self.arrays = [array for group in groups for array in group]
        parts = list(zip(self.manifest.held, self.arrays, strict=True))
        self.memory = HostMemory(engine)
        self.copy = Copy(self.memory, name, "t", parts)
        self.recent = Recent(engine, name, wanted=True)
        self.offer()

    def offer(self):
        """Offer what is in the copy."""
        self.sums = summed(self.copy)
        self.copy.offer(self.version, self.sums)

    @property
    def version(self):
        """Return the version of what is in the copy."""
        return Version("e", self.counter)

    def push(self):
        """Take the model as it is now; keep what has changed in it."""
        news = [array for group in self.model.rank(self.number)[1] for array in group]
        base = self.version
        look = self.recent.look(self.manifest, base, far=True)
        for nth, (new, old) in enumerate(zip(news, self.arrays, strict=True)):
            found = self.memory.changed(np.asfortranarray(new), old)
            look.see(nth, lambda found=found: found)
            old[...] = new
        assert not look.is_too_much
        self.counter += 1
        self.recent.keep(look, "t", self.version)
        self.offer()

    def granted(self, base):
        """Return what a reader is granted that has a version."""
        metadata = self.engine.metadata
        granted = self.copy.hold(self, self.counter, self.version)
        chain = self.recent.chain(base, self.version)
        said = {"identity": metadata["identity"], "metadata": metadata}
        return From.of({**granted, **said, "changes": chain})

    def close(self):
        """End it."""
        self.copy.close()
        self.recent.close()


def altered(model, chance):
    """Change a few elements of a model, of some tensors none."""
    for value in model.full.values():
        if chance.random() < 0.7:
            value[chance.random(value.shape) < 0.2] += 1


def goals_of(model, seed):
    """Return the same destinations each time, and what they must be now."""
    model.rng = np.random.default_rng(seed)
    return list(model.destinations())


@pytest.mark.parametrize("seeds", [range(1040, 1052), range(1060, 1072)])
def test_a_chain_of_changes_is_what_a_full_gather_says(engines, seeds, monkeypatch):
    """From several ranks, in small blocks, into strided memory amid poison."""
    monkeypatch.setattr(changes, "BLOCK", 8)
    monkeypatch.setattr(changes, "_MOST_RUNS", 3)
    monkeypatch.setattr("stretto.weights.recent._MOST", 100.0)  # models are tiny
    theirs = [engines.engine(f"rank{i}") for i in range(4)]
    ours = engines.engine("ours", *theirs)
    for seed in seeds:
        model, chance = Model(seed), np.random.default_rng(seed)
        numbers = [r for r in range(model.num_ranks) if model.rank(r)[0].groups]
        ranks = [Rank(theirs[r], model, r, f"c{seed}") for r in numbers]
        goals = goals_of(model, seed)
        wanted = [
            Wanted(name=n, shape=g.shape, dtype=str(g.dtype), spec=spec)
            for n, spec, g in goals
        ]
        memory = {n: poisoned(g, chance) for n, _, g in goals}
        into = {n: inside for n, (_, inside) in memory.items()}
        puller, base = Puller(ours, f"c{seed}", wanted, turn=seed), Version("e", 0)
        source = [one.granted(base) for one in ranks]
        puller.pull(source, into, 30.0)
        here = Copy(HostMemory(ours), f"c{seed}", "o", parts_here(
            wanted, puller.there(source), into
        ))  # fmt: skip
        for pushes in (1, 2, 3):
            for _ in range(pushes):
                altered(model, chance)
                for one in ranks:
                    one.push()
            source = [one.granted(base) for one in ranks]
            assert {pushes} == {len(one.changes) for one in source}
            puller.update(source, into, 30.0, ranks[0].memory.put)
            base = ranks[0].version
            for n, _, goal in goals_of(model, seed):
                assert np.array_equal(goal, into[n]), (seed, n)
            side = [(one.copy.manifest, one.sums) for one in ranks]
            assert [] == differences(side, [(here.manifest, summed(here))])
        for n, _, _ in goals:
            into[n][...] = 251
            large = memory[n][0]
            assert (large == large.dtype.type(251)).all(), (seed, n)
        for one in (*ranks, here):
            one.close()


def test_what_leads_from_another_version_is_not_given(engines, monkeypatch):
    """Nor is what was too long ago, or has a gap."""
    monkeypatch.setattr("stretto.weights.recent._MOST", 100.0)
    model = Model(3)
    rank = Rank(engines.engine("rank"), model, 0, "gaps")
    for _ in range(10):
        rank.push()
    newest = rank.version

    def reach(counter, epoch="e"):
        return rank.recent.chain(Version(epoch, counter), newest)

    assert [3, 4, 5, 6, 7, 8, 9, 10] == reach(2)
    assert [10] == reach(9)
    assert [] == reach(1) == reach(10) == reach(9, "f")
    rank.counter = 12
    rank.push()
    assert [] == rank.recent.chain(Version("e", 10), Version("e", 13))
    rank.close()


def one_part(size=100_000):
    """Return the blocks of one part, and bytes that say what has changed in it."""
    held = Held(name="w", shape=(size,), box=((0, size),), dtype="int32")
    blocks = BlockMap(grouped([held])[0])
    places, bits = np.array([5, 70_000, size - 1]), np.array([1, 2, 3], np.uint32)
    return blocks, packed(blocks, [found_at(places, bits, size)])


def read(blocks, data, nbytes=None):
    """Write what bytes say into zeros, and return that."""
    into = np.zeros(int(blocks.sizes[0]), np.int32)
    box = ((0, len(into)),)
    put = HostMemory(None).put
    found = NewElements(blocks, nbytes or len(data), lambda a, b: data[a:b].copy(), put)
    found.write([BoxTarget(0, box, box, into)])
    return into


@pytest.mark.parametrize(
    ("at", "put", "why"),
    [
        (16, 6, "changes of .* bytes, and"),
        (0, 1, "do not begin one after another"),
        (16, 200, "do not begin"),
        (28, 0xFFFF, "'w': a change outside of it"),
    ],
)
def test_bytes_that_make_no_sense_are_refused(at, put, why):
    """Of the head, and of where a change is to be."""
    blocks, data = one_part()
    assert [1, 2, 3] == read(blocks, data)[[5, 70_000, 99_999]].tolist()
    data[at : at + 2] = np.frombuffer(np.uint16(put).tobytes(), np.uint8)

    with pytest.raises(TransferError, match=why):
        read(blocks, data, len(data))


def weights_of(value, changes=0):
    """Return a tensor in which so many elements are others."""
    tensor = np.full((64, 64), value, np.float32)
    tensor.reshape(-1)[:changes] += 1
    return {"w": tensor}


def follow(engines, **how):
    """Return a source that gives changes to all, what it has, and a replica."""
    ours = weights_of(1.0)
    source = engines.source(ours, **how)
    policy = engines.replica(weights_of(0.0), source.engine)
    until(lambda: len(source.known) == 1)
    return source, ours["w"], policy


def is_here(source, ours, policy):
    """Whether a replica steps with what was pushed last."""
    policy.wait(source.version, timeout=WAIT)
    with policy.step():
        return np.array_equal(policy.tensors["w"].view(np.int32), ours.view(np.int32))


def watched(policy, monkeypatch):
    """Return how often changes were read."""
    calls, inner = [], policy.puller.update
    monkeypatch.setattr(policy.puller, "update", lambda *h: calls.append(inner(*h)))
    return calls


def test_bits_change_also_where_numbers_are_equal(engines, monkeypatch):
    """A zero of another sign, and numbers that are none."""
    source, ours, policy = follow(engines, delta=True)
    source.push(wait=True)
    calls = watched(policy, monkeypatch)
    for value in (0.0, -0.0, np.nan, -np.nan):
        ours[3, 5] = value
        push = source.push(wait=True)
        assert is_here(source, ours, policy)

    assert len(calls) == 4
    assert push.delta.startswith("0.02% of the elements changed since ")


def test_who_wrote_over_its_weights_gets_all_of_the_next_version(engines, monkeypatch):
    """Changes alone would keep what is wrong: it is found, and read whole."""
    source, ours, policy = follow(engines, delta=True)
    source.push(wait=True)
    calls = watched(policy, monkeypatch)
    with policy.step():
        policy.tensors["w"][9, 9] = 77.0
    ours[1, 1] = 5.0
    source.push(wait=True)

    assert is_here(source, ours, policy)
    assert len(calls) == 1
    ours[1, 1] = 6.0
    source.push(wait=True)
    assert is_here(source, ours, policy)
    assert len(calls) == 2


def test_it_is_said_why_changes_are_not_given(engines, monkeypatch):
    """And looked at again after a while, when too much has changed."""
    source, ours, policy = follow(engines, delta=True)
    calls = watched(policy, monkeypatch)
    said = [source.push(wait=True).delta]
    for nth in range(10):
        ours[...] += 1 if nth == 0 else 0
        ours[0, 0] += 1
        said.append(source.push(wait=True).delta)
    assert is_here(source, ours, policy)

    assert said[0].endswith("there is no snapshot before it")
    assert said[1].startswith("not worth it here: over 50% of all bytes")
    assert {True} == {s.endswith("too much changed lately") for s in said[2:9]}
    assert {True} == {"elements changed since" in s for s in said[9:]}
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("delta", "why"), [(None, "no replica is on another host"), (False, "delta=False")]
)
def test_by_default_nobody_looks_within_a_host(engines, delta, why, monkeypatch):
    """Where all is copied by memory, comparing costs as much."""
    source, ours, policy = follow(engines, delta=delta)
    calls = watched(policy, monkeypatch)
    for _ in range(3):
        ours[0, 0] += 1
        assert source.push(wait=True).delta == f"changes were not looked for: {why}"
    assert is_here(source, ours, policy)
    assert not calls


def test_what_is_cast_is_compared_as_it_is_sent(engines, monkeypatch):
    """Most of an optimizer's steps are lost in bfloat16: so changes are few."""
    ours = {"w": np.full((64, 64), 1.0, np.float32)}
    source = engines.source(ours, delta=True, cast="bfloat16")
    into = {"w": np.zeros((64, 64), ml_dtypes.bfloat16)}
    policy = engines.replica(into, source.engine)
    until(lambda: len(source.known) == 1)
    source.push(wait=True)
    calls = watched(policy, monkeypatch)
    ours["w"] += 1e-4
    ours["w"][7, 7] = 3.0
    push = source.push(wait=True)

    assert push.delta.startswith("0.02% of the elements")
    with policy.step():
        want = ours["w"].astype(ml_dtypes.bfloat16)
        assert np.array_equal(want, policy.tensors["w"])
    assert len(calls) == 1


def test_what_is_pushed_in_place_has_no_past(engines, monkeypatch):
    """A snapshot after it is compared with the last snapshot, which nobody has."""
    source, ours, policy = follow(engines, delta=True)
    source.push(wait=True)
    calls = watched(policy, monkeypatch)
    ours[0, 0] = 2.0
    push = source.push(in_place=True)
    assert push.delta.endswith("there is no snapshot before it")
    push.wait(WAIT)
    push.end()
    ours[0, 1] = 3.0
    source.push(wait=True)
    assert is_here(source, ours, policy)
    assert not calls


def test_a_delta_that_is_neither_is_refused(engines):
    """In words that say what there is."""
    with pytest.raises(CallError, match=r"delta='few'; want True, False, or None"):
        engines.source(weights_of(1.0), delta="few")
