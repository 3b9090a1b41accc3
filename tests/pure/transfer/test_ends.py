"""Whoever hears that a transfer has ended may use its memory: nothing is moved then."""

import select
import threading
import time
from types import SimpleNamespace

import pytest

from stretto.errors import EngineLost, TransferError
from stretto.transfer.ways.transfer import Transfer

WAIT_S = 20
ENDS = {
    "cancelled": lambda t: t.cancel(),
    "expired": lambda t: t.expire(),
    "lost": lambda t: t.stop(EngineLost, "gone"),
    "failed": lambda t: t.fail(TransferError("refused")),
}


def waited(pending, until):
    """Wait as a thread does that cannot help."""
    left = None if until is None else max(0.0, until - time.monotonic())
    return pending.event().wait(left)


def made():
    """Return a transfer of which others move the bytes."""
    loop = SimpleNamespace(check=lambda: None, wait_for=waited)
    return Transfer(loop, None, "a way", nbytes=8, pieces=1)


def hearing(transfer):
    """Return what hears of its end in every way there is, and says which have."""
    heard = []
    number = transfer.fileno()

    def wait():
        with pytest.raises(TransferError):
            transfer.wait(WAIT_S)
        heard.append("wait")

    def look():
        while not transfer.done():
            time.sleep(0.0005)
        heard.append("done")

    def read():
        select.select([number], [], [], WAIT_S)
        heard.append("fileno")

    transfer.then(lambda: heard.append("then"))
    threads = [threading.Thread(target=one) for one in (wait, look, read)]
    for thread in threads:
        thread.start()
    return heard, threads


def ended_meanwhile(transfer, how):
    """Have another thread end it; return that thread."""
    thread = threading.Thread(target=ENDS[how], args=(transfer,))
    thread.start()
    while not transfer.is_ending:
        time.sleep(0.0005)
    time.sleep(0.02)
    return thread


@pytest.mark.parametrize("how", ENDS)
def test_nobody_hears_of_an_end_while_something_is_still_moved_here(how):
    """A thread that copies sees the word, and lets go; until then it is not over."""
    transfer = made()
    heard, threads = hearing(transfer)
    with transfer.turn:
        ends = ended_meanwhile(transfer, how)
        assert transfer.word[0]
        assert not heard
    for thread in (ends, *threads):
        thread.join(WAIT_S)
    assert sorted(heard) == ["done", "fileno", "then", "wait"]


@pytest.mark.parametrize("how", ENDS)
def test_nobody_hears_of_an_end_while_a_peer_may_still_store(how):
    """What others do for it is halted first, such as a field that is open."""
    transfer, closed = made(), threading.Event()
    transfer.halt = lambda: closed.wait(WAIT_S)
    heard, threads = hearing(transfer)
    ends = ended_meanwhile(transfer, how)
    assert not heard
    assert not transfer.fail(TransferError("later")), "how it ends is decided"
    closed.set()
    for thread in (ends, *threads):
        thread.join(WAIT_S)
    assert sorted(heard) == ["done", "fileno", "then", "wait"]


def test_an_end_is_told_even_if_halting_fails():
    """Nobody waits for ever for what went wrong."""
    transfer = made()

    def fails():
        raise ValueError("broken")

    transfer.halt = fails
    with pytest.raises(ValueError, match="broken"):
        transfer.cancel()
    assert transfer.done()


def test_who_moves_bytes_may_end_it():
    """It waits for its own turn to no end."""
    transfer = made()
    with transfer.turn:
        assert transfer.cancel()
    assert transfer.done()


@pytest.mark.parametrize("how", sorted(set(ENDS) - {"failed"}))
def test_who_moves_bytes_is_stopped_when_it_is_decided_how_it_ends(how):
    """Sums that are cut short differ: that was said of what was cancelled, or late."""
    transfer, seen = made(), []

    def how_far():
        seen.append((bool(transfer.word[0]), transfer.is_ending))
        return 0, 0

    transfer.how_far = how_far
    ENDS[how](transfer)
    assert seen
    assert all(is_decided or not is_stopped for is_stopped, is_decided in seen)
    assert transfer.word[0]
