"""Transfers that event loops wait for, and loops that end before them."""

import asyncio
import threading

import pytest

from stretto.transfer.ways.pending import Pending


class NoLoop:
    """The engine's loop, which has no trouble."""

    def check(self):
        """Have met no fault."""


def leave(pending, closes_at):
    """Begin to wait in a loop that is then closed, when it is asked or before."""
    loop = asyncio.new_event_loop()

    async def wait():
        return await pending

    task = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False
    if closes_at == "before":
        loop.close()
        return
    tell = loop.call_soon_threadsafe

    def closing(*args):
        loop.close()  # as its own thread may, just now
        return tell(*args)

    loop.call_soon_threadsafe = closing


@pytest.mark.parametrize("closes_at", ["before", "meanwhile"])
@pytest.mark.parametrize("ends", ["finish", "fail", "cancel"])
def test_a_loop_that_has_closed_keeps_nothing_from_the_others(closes_at, ends):
    """Whoever ends it goes on, and those who also wait hear of it."""
    one, heard = Pending(NoLoop(), "one"), threading.Event()
    leave(one, closes_at)
    one.then(heard.set)
    how = {"finish": (3,), "fail": (ValueError("odd"),), "cancel": ()}
    assert getattr(one, ends)(*how[ends])
    assert heard.is_set()
    assert one.done()
