"""A loop over descriptors: what was given back is not called in the same turn."""

import os
import selectors

import pytest

from stretto.meeting.hosting.loop import dispatch


@pytest.fixture
def pipes():
    """Two pipes in which something waits; whoever closes an end says so."""
    made = [os.pipe() for _ in range(2)]
    for _, end in made:
        os.write(end, b"x")
    left = {number for pair in made for number in pair}
    yield made, left
    for number in left:
        os.close(number)


@pytest.mark.parametrize("anew", [False, True])
def test_what_was_closed_in_the_same_turn_is_passed_over(pipes, anew):
    """Also where its number stands for something else by then."""
    made, left = pipes
    ends = [reader for reader, _ in made]
    heard = []
    with selectors.DefaultSelector() as selector:

        def read(mine, other):
            heard.append(os.read(mine, 1))
            selector.unregister(other)
            if anew:
                os.dup2(made[0][1], other)
                selector.register(other, selectors.EVENT_READ, lambda: heard.append(0))
            else:
                os.close(other)
                left.discard(other)

        for mine, other in (ends, ends[::-1]):
            selector.register(
                mine, selectors.EVENT_READ, lambda m=mine, o=other: read(m, o)
            )
        dispatch(selector, 1.0)
    assert [b"x"] == heard
