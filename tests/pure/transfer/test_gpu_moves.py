"""Copies on streams that have ended, and may have been closed by another thread."""

from types import SimpleNamespace

import numpy as np
import pytest

from stretto.errors import StaleMemory, TransferCancelled, TransferTimeout
from stretto.executors.cuda.transfers.mover import GpuMove
from stretto.transfer.ways.gpu import GpuTransfer


class Move:
    """Copies that are done after some looks, and may not be looked at when closed."""

    def __init__(self, looks):
        self.looks, self.closed = looks, False

    def done(self):
        assert not self.closed, "its event has been destroyed"
        self.looks -= 1
        return self.looks < 0

    def close(self):
        self.closed = True


def started(move, **how):
    """Return a transfer of this move, and what other threads were asked to do."""
    asked = []
    loop = SimpleNamespace(
        check=lambda: None, move=asked.append, is_recorded=False, record=None
    )
    made = GpuTransfer(
        loop,
        None,
        "gpu",
        moves=[move],
        stream=1,
        free=move.close,
        nbytes=8,
        pieces=1,
        **how,
    )
    return made, asked


def test_copies_that_are_closed_are_done():
    """Their event is asked for by a thread that sees them off, and is gone."""
    move = GpuMove(None, None)

    assert not move.done(), "nothing has been enqueued so far"
    move.close()
    assert move.done()


def test_a_transfer_that_has_ended_is_not_seen_off_when_it_is_cancelled():
    """Its copies are closed, and its memory may be somebody else's."""
    move = Move(looks=0)
    transfer, asked = started(move)
    transfer.settle()

    assert move.closed
    assert not transfer.cancel()
    for what in asked:
        what()
    assert transfer.wait().nbytes == 8


def test_a_transfer_under_way_is_seen_off_once_when_it_is_cancelled_twice():
    """Its memory is released when the copies have been done after all."""
    move = Move(looks=3)
    transfer, asked = started(move)

    assert transfer.cancel()
    assert not transfer.cancel()
    assert not move.closed
    for what in asked:
        what()

    assert move.closed
    with pytest.raises(TransferCancelled):
        transfer.wait()


@pytest.mark.parametrize("how", ["expires", "is late", "is taken back", "is lost"])
def test_however_copies_end_in_vain_their_memory_is_released_once(how):
    """By whichever thread: the mark is there until the stream has come past them."""
    move, mark = Move(looks=3), np.full(1, 7, np.int64)
    transfer, asked = started(move, deadline=1e-9)
    transfer._guard = mark
    if how == "expires":
        transfer.expire()
    elif how == "is late":
        transfer._look()
    elif how == "is taken back":
        transfer.cancel()
    else:
        transfer.stop(TransferTimeout, "lost")

    assert mark[0] == 7
    assert not move.closed
    assert len(asked) == 1
    for what in asked:
        what()
    assert not mark.any()
    assert move.closed
    transfer.expire()
    transfer._look()
    assert not transfer.cancel()
    assert len(asked) == 1


def test_copies_to_memory_that_is_stale_are_not_begun_and_keep_no_mark():
    """Nothing has been enqueued that could be waited for."""
    move = Move(looks=3)
    transfer, asked = started(move)
    mark = np.zeros(1, np.int64)
    peer = SimpleNamespace(
        name="there", lost="", board=SimpleNamespace(epoch=lambda slot: 8)
    )
    transfer.guard(peer, mark.ctypes.data, 0, 7)

    assert not mark.any()
    assert move.closed
    assert not asked
    with pytest.raises(StaleMemory):
        transfer.wait()
