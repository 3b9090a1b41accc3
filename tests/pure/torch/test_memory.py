"""A block of addresses is given out and taken back without overlap or loss."""

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from stretto.torch import memory  # noqa: E402
from stretto.torch.memory import Ranges  # noqa: E402


@given(
    st.lists(
        st.one_of(st.integers(1, 5000), st.integers(0, 20).map(lambda k: ("free", k))),
        max_size=60,
    )
)
def test_parts_do_not_overlap_and_all_comes_back(asked):
    """After any takes and gives, the whole block can be taken at once."""
    start, nbytes = 512 * 7, 512 * 40
    ranges, held = Ranges(start, nbytes), []
    for one in asked:
        if isinstance(one, tuple):
            if held:
                ranges.give(*held.pop(one[1] % len(held)))
            continue
        at = ranges.take(one)
        if at:
            assert at % 512 == 0
            assert start <= at
            assert at + one <= start + nbytes
            assert all(at + one <= a or a + size <= at for a, size in held)
            held.append((at, one))
    for part in held:
        ranges.give(*part)
    assert start == ranges.take(nbytes)
    assert 0 == ranges.take(1)


def test_ranks_that_ask_for_the_same_get_the_same_places():
    """Places depend on what is asked alone, not on where the block begins."""
    one, two = Ranges(512 * 3, 1 << 20), Ranges(512 * 9, 1 << 20)
    for size in (700, 5, 40_000, 512):
        assert 512 * 6 == two.take(size) - one.take(size)


def test_what_comes_back_while_the_interpreter_ends_is_left(monkeypatch):
    """PyTorch gives memory back after the names of all modules are gone."""
    places, at_exit, wrong = [], [], []
    cuda = SimpleNamespace(is_available=lambda: True, MemPool=lambda made: made)
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(
        torch._C, "_cuda_customAllocator", lambda *at: places.extend(at), raising=False
    )
    block = torch.empty(1 << 14, dtype=torch.uint8)
    monkeypatch.setattr(memory, "empty", lambda *_, **__: block)
    monkeypatch.setattr(memory.atexit, "register", at_exit.append)
    monkeypatch.setattr(sys, "unraisablehook", wrong.append)
    memory.pool(1 << 14)
    take, free = memory._ALLOCATE(places[0]), memory._FREE(places[1])
    one, other = take(100, 0, None), take(100, 0, None)
    free(one, 100, 0, None)
    assert one == take(100, 0, None)

    for end in at_exit:
        end()
    monkeypatch.setattr(memory, "_ALIGN", None)
    free(other, 100, 0, None)

    assert [] == wrong
