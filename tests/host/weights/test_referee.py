"""Random models by real transfers: every byte is what a full gather says."""

import threading
import time

import numpy as np
import pytest
from tests.host.weights.models import summed
from tests.pure.weights.random_models import Model

from stretto.weights import Version, pulling
from stretto.weights.copies import Copy
from stretto.weights.cover import Wanted
from stretto.weights.early import Following
from stretto.weights.hashes import differences
from stretto.weights.memory import HostMemory
from stretto.weights.pulling import From, Puller, parts_here

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]
VERSION = Version("e", 1)


def poisoned(goal, chance):
    """Return memory of a shape that lies somehow in a larger one, all of it poison."""
    room = [int(chance.integers(0, 3)) for _ in goal.shape]
    large = np.full([n + r for n, r in zip(goal.shape, room, strict=True)], 251)
    large = large.astype(goal.dtype)
    inside = large[tuple(slice(r, None) for r in room)] if room else large
    return large, inside


class Coming:
    """A source's rank whose bytes come bit by bit: what has not yet come is poison."""

    def __init__(self, copy, arrays):
        self.copy, self.arrays = copy, arrays
        self.whole = b"".join(array.tobytes() for array in arrays)
        for array in arrays:
            array.reshape(-1).view(np.uint8)[:] = 0xFB
        self.far = 0
        copy.open(VERSION, ())

    def come(self, far):
        """Let bytes come, in the order of the manifest, and say so."""
        begin = 0
        for array in self.arrays:
            flat = array.reshape(-1).view(np.uint8)
            part = self.whole[begin : min(far, begin + len(flat))]
            flat[: len(part)] = np.frombuffer(part, np.uint8)
            begin += len(flat)
        self.far = min(far, begin)
        self.copy.came(self.far)

    @property
    def is_there(self):
        """Whether all has come."""
        return self.far == len(self.whole)


class Rank:
    """A source's rank, as a reader is told of it; `early`: it comes meanwhile."""

    def __init__(self, engine, model, rank, name, *, early, reader):
        self.engine, self.name = engine, name
        self.manifest, groups = model.rank(rank)
        self.arrays = [array for group in groups for array in group]
        parts = list(zip(self.manifest.held, self.arrays, strict=True))
        self.copy = Copy(HostMemory(engine), name, "t", parts, tell=reader)
        self.sums = summed(self.copy)
        self.coming = Coming(self.copy, self.arrays) if early else None
        if not early:
            self.copy.offer(VERSION, self.sums)

    def granted(self, number):
        """Return what a reader is granted."""
        metadata = self.engine.metadata
        granted = self.copy.hold(self, number, VERSION)
        said = {"identity": metadata["identity"], "metadata": metadata, "changes": []}
        return From.of({**granted, **said})


def reading(ranks):
    """Return a reader's following, and what ranks tell it by: without any messages."""
    changed = threading.Condition(threading.RLock())

    def watch(peer, word, **body):
        token = bytes.fromhex(body["token"])
        assert [True] == [one for r in ranks if (one := r.copy.watch(peer, token))]

    following = Following(changed, watch)

    def tell(peer, word, **body):
        with changed:
            following.hear(peer, body)
            changed.notify_all()

    return following, tell


class Line:
    """What is told of how far a copy has come: all bytes before that are right."""

    def __init__(self, copy, goals, into):
        for n, _, goal in goals:
            into[n][...] = goal
        self.arrays, self.told = copy.arrays, []
        self.want = self._bytes()
        for n, _, _ in goals:
            into[n][...] = 251

    def _bytes(self):
        return b"".join(array.tobytes() for array in self.arrays)

    def came(self, far):
        """Hear how far it is."""
        assert self._bytes()[:far] == self.want[:far]
        self.told.append(far)


def come(ranks, chance, ends):
    """Let bytes of ranks come, a few at a time, at random."""
    coming = [r.coming for r in ranks if r.coming]
    while not ends.is_set() and (some := [c for c in coming if not c.is_there]):
        one = some[chance.integers(len(some))]
        one.come(one.far + int(chance.integers(1, 1 + len(one.whole) // 3 + 1)))
        time.sleep(0.0005)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("seeds", [range(1000, 1008), range(1020, 1028)])
def test_random_models_arrive_byte_for_byte(engines, seeds, early, monkeypatch):
    """From several ranks into strided memory; what is around it stays poison.

    Also in pieces of a few bytes, while they come to those ranks.
    """
    monkeypatch.setattr(pulling, "_LEAST_PIECE", 16)
    theirs = [engines.engine(f"rank{i}") for i in range(4)]
    ours = engines.engine("ours", *theirs)
    for seed in seeds:
        model, chance = Model(seed), np.random.default_rng(seed)
        name, ranks = f"m{seed}", []
        following, tell = reading(ranks)
        for rank in range(model.num_ranks):
            if model.rank(rank)[0].groups:
                is_early = early and bool(chance.random() < 0.7)
                one = Rank(theirs[rank], model, rank, name, early=is_early, reader=tell)
                ranks.append(one)
        source = [one.granted(seed) for one in ranks]
        goals = list(model.destinations())
        wanted = [
            Wanted(name=n, shape=g.shape, dtype=str(g.dtype), spec=spec)
            for n, spec, g in goals
        ]
        memory = {n: poisoned(g, chance) for n, _, g in goals}
        into = {n: inside for n, (_, inside) in memory.items()}
        puller = Puller(ours, name, wanted, turn=seed, following=following)
        monkeypatch.setattr(puller, "_most", lambda pairs, p=puller: p._far)
        here = parts_here(wanted, puller.there(source), into)
        ours_copy = Copy(HostMemory(ours), name, "o", here)
        line = Line(ours_copy, goals, into)
        monkeypatch.setattr(ours_copy, "came", line.came)
        ends = threading.Event()
        thread = threading.Thread(target=come, args=(ranks, chance, ends))
        thread.start()
        try:
            puller.pull(source, into, 30.0, onto=ours_copy)
        finally:
            ends.set()
            thread.join()

        for n, _, goal in goals:
            large, inside = memory[n]
            assert np.array_equal(goal, inside), (seed, n)
            inside[...] = 251
            assert (large == large.dtype.type(251)).all(), (seed, n)
            inside[...] = goal
        assert line.told == sorted(line.told), seed
        assert line.told[-1] == len(line.want)
        side = [(one.copy.manifest, one.sums) for one in ranks]
        found = ours_copy.manifest, ours_copy.added()  # as it came
        assert [] == differences(side, [found])
        for copy in (*(one.copy for one in ranks), ours_copy):
            copy.close()
