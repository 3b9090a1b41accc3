"""Small models for sources and replicas in one process."""

import numpy as np

__all__ = ["both", "fill", "some", "step", "summed"]


def some(value=0.0, rows=8):
    return {
        "w": np.full((rows, 4), value, np.float32),
        "b": np.full(rows, value, np.float32),
        "scale": np.array(value, np.float32),
    }


def both(engines, ours=None, theirs=None, **how):
    source = engines.source(some() if ours is None else ours)
    into = some(-1.0) if theirs is None else theirs
    return source, engines.replica(into, source.engine, **how)


def step(policy):
    with policy.step():
        pass


def fill(source_tensors, value):
    for array in source_tensors.values():
        array[...] = value


def summed(copy):
    """Return the sums of all that a copy holds, added up at once."""
    copy.begin(None)
    copy.add(copy.line.end)
    return copy.added()
