"""Where one rank has no GPU all ranks refuse alike, and nothing has been opened."""

import pytest

from stretto.errors import DeviceError, MissingExtraError
from stretto.executors import Group, cuda
from stretto.executors.cuda.device import driver


class Among(Group):
    """Rank 0 of two; the other one says what it is told to."""

    rank, num_ranks, deadline_s = 0, 2, 1.0

    def __init__(self, other):
        self.other = other

    def exchange(self, payload, fds=()):
        self.said = payload
        return [(payload, ()), (self.other, ())]


HAS = {"unavailable": "", "extra": False}


def counting(count):
    """Return a driver's `ask` with so many devices, or that raises."""

    def ask(name):
        assert "cuDeviceGetCount" == name
        if isinstance(count, Exception):
            raise count
        return count

    return ask


def test_nothing_is_unavailable_where_all_have_a_gpu(monkeypatch):
    """Then a session is opened."""
    monkeypatch.setattr(driver, "ask", counting(2))

    assert cuda.unavailable(Among(HAS)) is None


@pytest.mark.parametrize(
    ("mine", "kind", "text"),
    [
        (0, DeviceError, "rank 0: no CUDA device is visible"),
        (DeviceError("no driver"), DeviceError, "rank 0: no driver"),
        (MissingExtraError("no bindings"), MissingExtraError, "rank 0: no bindings"),
    ],
)
def test_what_this_rank_lacks_is_told(monkeypatch, mine, kind, text):
    """The others hear what is missing here, and do not wait for it to be opened."""
    monkeypatch.setattr(driver, "ask", counting(mine))
    group = Among(HAS)

    found = cuda.unavailable(group)

    assert kind is type(found)
    assert str(found).startswith(text)
    assert group.said["unavailable"]


@pytest.mark.parametrize("extra", [False, True])
def test_what_another_rank_lacks_is_heard(monkeypatch, extra):
    """The error is of the same class on all ranks, and names the one that lacks."""
    monkeypatch.setattr(driver, "ask", counting(1))

    found = cuda.unavailable(Among({"unavailable": "no driver", "extra": extra}))

    assert "rank 1: no driver" == str(found)
    assert (MissingExtraError if extra else DeviceError) is type(found)
