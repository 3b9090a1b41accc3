"""Random models by real transfers: every byte is what a full gather says."""

import numpy as np
import pytest
from tests.pure.weights.random_models import Model

from stretto.weights import Version
from stretto.weights.copies import Copy
from stretto.weights.cover import Wanted
from stretto.weights.hashes import differences, read_sums
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


@pytest.mark.parametrize("seeds", [range(1000, 1008), range(1020, 1028)])
def test_random_models_arrive_byte_for_byte(engines, seeds):
    """From several ranks into strided memory; what is around it stays poison."""
    theirs = [engines.engine(f"rank{i}") for i in range(4)]
    ours = engines.engine("ours", *theirs)
    for seed in seeds:
        model, chance = Model(seed), np.random.default_rng(seed)
        name, copies, source = f"m{seed}", [], []
        for rank in range(model.num_ranks):
            manifest, groups = model.rank(rank)
            arrays = [array for group in groups for array in group]
            parts = list(zip(manifest.held, arrays, strict=True))
            if not parts:
                continue
            copy = Copy(HostMemory(theirs[rank]), name, "t", parts)
            copy.offer(VERSION, copy.sum(None))
            copies.append(copy)
            metadata = theirs[rank].metadata
            granted = copy.hold(ours, seed, VERSION)
            source.append(
                From.of({**granted, "identity": metadata["identity"],
                         "metadata": metadata})
            )  # fmt: skip
        goals = list(model.destinations())
        wanted = [
            Wanted(name=n, shape=g.shape, dtype=str(g.dtype), spec=spec)
            for n, spec, g in goals
        ]
        memory = {n: poisoned(g, chance) for n, _, g in goals}
        into = {n: inside for n, (_, inside) in memory.items()}
        there = Puller(ours, name, wanted, turn=seed).pull(source, into, 30.0)
        here = parts_here(wanted, there, into)

        for n, _, goal in goals:
            large, inside = memory[n]
            assert np.array_equal(goal, inside), (seed, n)
            inside[...] = 251
            assert (large == large.dtype.type(251)).all(), (seed, n)
            inside[...] = goal
        sums = [read_sums(one.sums, c.manifest) for one, c in
                zip(source, copies, strict=True)]  # fmt: skip
        ours_copy = Copy(HostMemory(ours), name, "o", here)
        side = [(c.manifest, s) for c, s in zip(copies, sums, strict=True)]
        found = ours_copy.manifest, ours_copy.sum(None)
        assert [] == differences(side, [found])
        for copy in (*copies, ours_copy):
            copy.close()
