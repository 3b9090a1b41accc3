"""Calls that are made again by who knows that nothing has changed."""

import numpy as np
import pytest
from tests.pure.calls.test_arguments import Alone

from stretto.errors import PeerLost
from stretto.runtime.calls import Communicator


@pytest.fixture
def comm():
    """Return a communicator of one rank, on CPUs."""
    made = Communicator(Alone(), profiles=None)
    yield made
    made.close()


@pytest.fixture
def pair(comm):
    """Return two arrays whose sum has been made, and the call made again."""
    x, out = np.arange(4.0), np.empty(4)
    assert comm.repeated_into(x, out) is None
    comm.all_reduce(x, out=out)
    return x, out, comm.repeated_into(x, out)


def test_a_sum_into_an_array_is_made_again_without_looking(pair):
    """Of what is in `x` then."""
    x, out, again = pair
    x[:] = 7
    assert again()
    assert [7.0] * 4 == out.tolist()


def test_it_says_so_where_a_call_must_be_examined(comm, pair):
    """Ranks have changed, or somebody is inside: nothing is done."""
    x, out, again = pair
    out[:] = 2
    known, comm._known = comm._known, {}
    assert not again()
    comm._known = known
    comm._who = ("a",)
    assert not again()
    assert [2.0] * 4 == out.tolist()
    assert comm.repeated_into(x, out)()
    assert x.tolist() == out.tolist()


def test_only_arrays_of_numpy_apart_are_served(comm):
    """In place, or made by the call, is another one."""
    x = np.arange(4.0)
    comm.all_reduce(x, out=x)
    assert comm.repeated_into(x, x) is None
    comm.all_reduce(x)
    assert comm.repeated_into(x, None) is None
    with pytest.raises(TypeError):
        comm.repeated_into(x)


def test_what_a_launch_raises_breaks_the_communicator(comm, pair, monkeypatch):
    """As in a call that was examined."""
    x, out, _ = pair

    def lost(launch, *_):
        def raises(*_):
            raise PeerLost("rank 1 died")

        return raises

    monkeypatch.setattr(comm._sessions["cpu"], "repeated", lost, raising=False)
    again = comm.repeated_into(x, out)
    with pytest.raises(PeerLost, match="rank 1 died"):
        again()
