"""Who leaves a call gets nothing more into its arrays, however late a peer is."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from tests.soon import soon

from stretto import executors
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CollectiveTimeout
from stretto.executors import Call
from stretto.executors.cpu.peers.leaving import leave
from stretto.executors.cpu.shared.slab import CALL
from stretto.executors.cpu.words import Line
from stretto.program import algorithms

COUNT = 1 << 20


def opened(group):
    """Return a session, and a message from rank 0 to rank 1 in halves."""
    session = executors.get("cpu").open_session(group)
    made = algorithms.get("permute/halves").build(2, pairs=((0, 1),))
    words = "pull bulk across given:push tile_bytes=1073741824"
    program = verify(made)
    plan = verify_plan(lower(program, Schedule.parse(words), in_place=False), program)
    call = Call(dtype="uint8", counts=(COUNT, COUNT))
    return session, session.prepare(plan, call)


def comes_late(group):
    """Let rank 0 come when rank 1 has left, and uses its array for other things."""
    group.deadline_s = 0.3
    _, launch = opened(group)
    x, out = np.full(COUNT, 1, np.uint8), np.full(COUNT, 2, np.uint8)
    group.exchange({})
    if group.rank == 1:
        with pytest.raises(CollectiveTimeout):
            launch(None, out)
        out[:] = 3
    group.exchange({})  # rank 0 begins only now, and finds that rank 1 was there
    if group.rank == 0:
        with pytest.raises(CollectiveTimeout):
            launch(x, None)
    group.exchange({})
    return int(out.min()), int(out.max())


def test_who_comes_late_writes_nothing_where_a_peer_was(ranks):
    """It sees that the peer has left, though the peer had said that it was there."""
    assert (3, 3) == ranks(2, comes_late)[1]


def waits(group, ends):
    """Let rank 1 leave while rank 0 says that it writes; return how long that took."""
    session, _ = opened(group)
    slabs = session._slabs
    if group.rank == 0:
        slabs[0]._head[CALL // 8 + Line.GIVES] = 2
        group.exchange({})
        if ends == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3)
        if ends == "written":
            slabs[0]._head[CALL // 8 + Line.GIVES] = 0
        time.sleep(3)
        return None
    group.exchange({})
    start = time.monotonic()
    leave(1, slabs)
    return time.monotonic() - start


@pytest.mark.parametrize("ends", ["written", "killed"])
def test_who_leaves_waits_for_what_is_being_written(ranks, ends):
    """Until it is, or whoever wrote has ended."""
    took = ranks(2, waits, ends)[1]

    assert took < soon(1.0)
    assert ends == "killed" or took > 0.2


def stands_still(group):
    """As above, and let rank 0 never go on; return what is warned of it."""
    if group.rank == 0:
        return waits(group, "never")
    with pytest.warns(RuntimeWarning, match="rank 0 stands still while it writes"):
        return waits(group, "never")


def test_who_stands_still_is_named(ranks):
    """And nobody waits for ever."""
    assert 2 <= ranks(2, stands_still)[1] < soon(4)
