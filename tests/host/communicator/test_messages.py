"""What users hear of their calls cites lines of theirs, and says everything once."""

import os
import time

import numpy as np
import pytest

import stretto
from stretto.errors import StrettoError, is_library

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]


def mismatch(comm):
    """Call different things."""
    comm.all_reduce(np.ones(1000, np.float32), "max" if comm.rank else "sum")


def late(comm):
    """Do not come."""
    while comm.rank and not comm._group.broken[0]:
        time.sleep(0.01)
    comm.all_reduce(np.ones(1000, np.float32), algorithm="all_reduce/ring")


def wrong(comm):
    """Give what cannot be taken."""
    comm.broadcast(np.ones(3, np.float32), root=9)


def killed(comm):
    """Die."""
    if comm.rank:
        time.sleep(0.1)
        os.kill(os.getpid(), 9)
    comm.all_reduce(np.ones(1000, np.float32), algorithm="all_reduce/ring")


def of_a_cause(comm):
    """Raise what has a cause."""
    try:
        wrong(comm)
    except StrettoError as e:
        raise ValueError("of the " + "user") from e


def each_heard(comm):
    """Return what is heard of each, in a group of its own."""
    said = []
    for wrongly in (mismatch, late, wrong, killed):
        group = comm.split(0, deadline_s=0.5)
        try:
            wrongly(group)
        except StrettoError as e:
            said.append(str(e))
    return said


def test_messages_cite_no_line_of_the_library():
    """Of a mismatch, a late rank, a wrong argument and a death."""
    with pytest.raises(stretto.RankFailed) as e:
        stretto.spawn(each_heard, num_ranks=2)

    (said,) = e.value.results.values()
    assert 4 == len(said)
    for message in said:
        words = message.replace("(", " ").split()
        assert not [word for word in words if is_library(word)], message


@pytest.mark.parametrize("wrongly", [mismatch, wrong, of_a_cause])
def test_a_failed_rank_is_told_of_once_by_lines_of_the_user(wrongly):
    """The message first, then where it was called; nothing twice."""
    with pytest.raises(stretto.RankFailed) as e:
        stretto.spawn(wrongly, num_ranks=2)

    text = str(e.value)
    first = text.partition("\n")[0].partition(": ")[2]
    assert 1 == text.count(first), text
    assert __file__ in text
    quoted = [line.split('"')[1] for line in text.splitlines() if '  File "' in line]
    assert quoted
    assert not [name for name in quoted if is_library(name)], text
