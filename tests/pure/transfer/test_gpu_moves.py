"""Copies on streams that have ended, and may have been closed by another thread."""

from types import SimpleNamespace

import pytest

from stretto.errors import TransferCancelled
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


def started(move):
    """Return a transfer of this move, and what other threads were asked to do."""
    asked = []
    loop = SimpleNamespace(
        check=lambda: None, move=asked.append, is_recorded=False, record=None
    )
    made = GpuTransfer(
        loop, None, "gpu", moves=[move], stream=1, free=move.close, nbytes=8, pieces=1
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
