"""An engine that is closed while others wait, and afterwards: nobody waits in vain."""

import asyncio
import socket
import threading
import time
import uuid

import numpy as np
import pytest

from stretto.errors import CallError, StrettoError
from stretto.transfer import Engine

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]
WAIT = 20
SECRET = b"s" * 32


def made(**how):
    """Return an engine under a new name."""
    return Engine(f"e-{uuid.uuid4().hex[:8]}", secret=SECRET, **how)


async def _awaited(engine):
    await engine.notified(b"never")


WAITS = {
    "a notification": lambda e, _: e.notified(b"never").wait(),
    "several of them": lambda e, _: e.notified(b"never", 5).wait(WAIT),
    "one that is awaited": lambda e, _: asyncio.run(_awaited(e)),
    "one by its event": lambda e, _: _by_event(e.notified(b"never").pending()),
    "a peer by name": lambda e, _: e.peer("nobody").wait(),
    "a peer's memory": lambda e, where: e.connect(where).wait(WAIT).region("no").wait(),
    "a connection": lambda e, _: _silent(e),
}


def _by_event(pending):
    assert pending.event().wait(WAIT)
    pending.wait(0)


def _silent(engine):
    """Connect with somebody who says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        engine.connect(f"{host}:{port}").wait(WAIT)


@pytest.mark.parametrize("what", WAITS)
def test_whoever_waits_hears_that_the_engine_was_closed(what):
    """At once, whether it waits with a time-out or without."""
    with made(listen="127.0.0.1:0") as there:
        engine, heard = made(), []

        def wait():
            try:
                WAITS[what](engine, there.address)
            except StrettoError as e:
                heard.append(str(e))

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        time.sleep(0.3)
        assert not heard
        engine.close()
        thread.join(WAIT / 2)
        assert heard
        assert "close" in heard[0]


def test_whoever_comes_to_wait_later_hears_it_too():
    """What has come before can still be taken."""
    there, engine = made(), made()
    there.connect(engine.name).wait(WAIT).notify(b"came", 2)
    engine.notified(b"came").wait(WAIT)
    engine.close()
    there.close()
    engine.notified(b"came").wait(WAIT)
    with pytest.raises(StrettoError, match="was closed by this process"):
        engine.notified(b"came").wait(WAIT)
    with pytest.raises(StrettoError, match="was closed by this process"):
        engine.peer("nobody").wait(WAIT)


def test_a_closed_engine_takes_nothing_on(tmp_path):
    """Memory that it gave out before stays where it is."""
    engine = made()
    arena = engine.arena(64)
    region = engine.share(arena, "kept")
    lease = engine.lease()
    engine.close()
    arena[:] = 7
    for do in (
        lambda: engine.arena(64),
        lambda: engine.file(tmp_path / "file", 64),
        lambda: engine.share(np.zeros(3), "new"),
        lambda: engine.lease(),
        lambda: engine.connect("somebody"),
        lambda: engine.follow("topic", None),
    ):
        with pytest.raises(CallError, match="is closed"):
            do()
    lease.end()
    engine.unshare(region)
    engine.close()
    assert (arena == 7).all()
