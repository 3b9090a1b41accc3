"""Random models, cut among ranks at random, and what each destination must become.

The reference gathers every tensor whole and puts destinations together with NumPy; it
knows nothing of boxes, tiles or manifests.
"""

import itertools

import numpy as np

from stretto.weights.manifest import Held, grouped
from stretto.weights.names import Cat, Part, Stack

__all__ = ["Model"]


def ranges(rng, size, count):
    """Return a size in so many ranges, none empty, as far as there are values."""
    inner = rng.choice(np.arange(1, size), min(count, size) - 1, replace=False)
    ends = [0, *sorted(int(e) for e in inner), size]
    return list(itertools.pairwise(ends))


class Model:
    """A few tensors, each source rank's parts, and destinations of some kinds."""

    def __init__(self, seed):
        self.rng = rng = np.random.default_rng(seed)
        self.full, self.parts = {}, {}
        self.num_ranks = int(rng.integers(1, 5))
        self.dtype = rng.choice(["float32", "int16", "uint8"])
        for i in range(int(rng.integers(1, 6))):
            shape = tuple(int(n) for n in rng.integers(1, 9, rng.integers(1, 4)))
            self.full[f"t{i}"] = self._values(shape)
        self.experts = [f"e{i}" for i in range(int(rng.integers(1, 4)))]
        shape = tuple(int(n) for n in rng.integers(1, 7, 2))
        for name in self.experts:
            self.full[name] = self._values(shape)
        self.full["scalar"] = self._values(())
        self._deal()

    def _values(self, shape):
        return self.rng.integers(1, 200, shape).astype(self.dtype)

    def _deal(self):
        """Give every rank a part of every tensor: a grid of them, or all to some."""
        for name, value in self.full.items():
            self.parts[name] = found = [[] for _ in range(self.num_ranks)]
            everything = tuple((0, n) for n in value.shape)
            if not value.shape or self.rng.random() < 0.3:
                for rank in {0, int(self.rng.integers(self.num_ranks))}:
                    found[rank].append(everything)
                continue
            axis = int(self.rng.integers(value.ndim))
            for nth, ends in enumerate(ranges(self.rng, value.shape[axis], 4)):
                box = (*everything[:axis], ends, *everything[axis + 1 :])
                found[nth % self.num_ranks].append(box)

    def rank(self, rank):
        """Return a rank's manifest, and its groups' arrays in that order."""
        held = [
            Held(name=n, shape=self.full[n].shape, box=box, dtype=str(self.dtype))
            for n, parts in self.parts.items()
            for box in parts[rank]
        ]
        manifest, order = grouped(held)
        arrays = [self._cut(held[i].name, held[i].box) for i in order]
        counts = np.cumsum([0, *map(len, manifest.groups)])
        groups = [arrays[a:b] for a, b in itertools.pairwise(counts)]
        return manifest, groups

    def _cut(self, name, box):
        return np.array(self.full[name][tuple(slice(a, b) for a, b in box)])

    def destinations(self):
        """Yield a name, where it comes from, and what it must become."""
        rng, full = self.rng, self.full
        for name in list(full):
            if name.startswith("t") and rng.random() < 0.8:
                yield f"same.{name}", Part(name), full[name]
        for name in [n for n in full if n.startswith("t") and full[n].shape]:
            axis = int(rng.integers(full[name].ndim))
            size = full[name].shape[axis]
            of = int(rng.choice([n for n in range(1, size + 1) if size % n == 0]))
            rank = int(rng.integers(of))
            yield (
                f"shard.{name}",
                Part(name, axis=axis, rank=rank, of=of),
                np.split(full[name], of, axis)[rank],
            )
        yield "scalar", Part("scalar"), full["scalar"]
        experts = [full[n] for n in self.experts]
        yield "packed", Stack(*self.experts), np.stack(experts)
        yield "fused", Cat(*self.experts), np.concatenate(experts)
        yield "wide", Cat(*self.experts, axis=1), np.concatenate(experts, 1)
        for axis in (-1, -2):  # counted from the end, as NumPy does
            three = Cat(*self.experts * 3, axis=axis)
            yield f"three{axis}", three, np.concatenate(experts * 3, axis)
        for axis in (-1, -2, -3):
            stack = Stack(Stack(*self.experts, axis=axis), axis=axis)
            goal = np.stack([np.stack(experts, axis)], axis)
            yield f"stack{axis}", stack, goal
        both = Stack(*(Cat(n, n) for n in self.experts), axis=1)
        yield "deep", both, np.stack([np.concatenate([e, e]) for e in experts], 1)
