"""A communicator of one rank whose session is a stand-in: the test's own `session`."""

import numpy as np
import pytest

from stretto import executors
from stretto.runtime.calls import Communicator


class Group(executors.Group):
    """Rank 1 of 3, alone."""

    rank, num_ranks, deadline_s = 1, 3, 1.0
    broken = np.zeros(1, np.int64)


@pytest.fixture
def comm(session):
    made = Communicator(Group(), executor="", profiles={})
    made._sessions["cuda"] = made._sessions["cpu"] = session
    return made


@pytest.fixture
def blind(comm, monkeypatch):
    """Return what lets no call be examined any more."""

    def refuse(*_):
        raise AssertionError("the call was examined")

    return lambda: monkeypatch.setattr(comm, "_enter", refuse)
