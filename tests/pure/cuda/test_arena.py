"""Allocations that are the same on every rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import CallError
from stretto.executors.cuda.device.arena import GRAIN, Arena


@given(st.lists(st.integers(0, 5000), max_size=30), st.data())
def test_live_allocations_never_overlap(sizes, data):
    """Whatever is allocated and freed, nobody gets what another has."""
    arena = Arena()
    arena.grow(0, 64 << 10)
    live = {}
    for size in sizes:
        start = arena.allocate(size)
        if start is None:
            continue
        for other, length in live.items():
            assert start + arena.size(start) <= other or other + length <= start
        live[start] = arena.size(start)
        if live and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(live)))
            arena.note(gone)
            arena.settle([arena.noted()])
            del live[gone]


def test_what_is_freed_comes_together_again():
    """Neighbours merge, so the whole space can be had once more."""
    arena = Arena()
    arena.grow(0, 4 * GRAIN)
    starts = [arena.allocate(GRAIN) for _ in range(4)]
    for start in starts[::2] + starts[1::2]:
        arena.note(start)
    arena.settle([arena.noted()] * 3)

    assert 0 == arena.allocate(4 * GRAIN)


def test_only_what_everybody_let_go_is_free():
    """One rank that holds on is enough."""
    arena = Arena()
    arena.grow(0, GRAIN)
    start = arena.allocate(1)
    arena.note(start)
    arena.settle([arena.noted(), ()])

    assert arena.allocate(1) is None


def test_a_second_release_is_an_error():
    """Releasing twice would give one place to two."""
    arena = Arena()
    arena.grow(0, GRAIN)
    start = arena.allocate(1)
    arena.note(start)
    arena.settle([arena.noted()])
    arena.note(start)

    with pytest.raises(CallError, match="released twice"):
        arena.settle([arena.noted()])
