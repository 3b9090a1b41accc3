"""An engine has what it had, when its clients are gone: however they went."""

import gc
import os
import signal
import threading
import time
import uuid

import numpy as np
import pytest
from tests.held import held, left_since
from tests.host.transfer.conftest import SECRET

from stretto.errors import CallError
from stretto.transfer import Engine

pytestmark = [pytest.mark.host, pytest.mark.timeout(170)]
WAIT = 30
AT_ONCE = 10
HOW = ("closes", "is killed", "forks", "forks by itself")
WAYS = [(way, how) for way in ("near", "tcp") for how in HOW][:-1]
"""Of the last the far end sees a connection that somebody holds."""


def client(job, where, how, out):
    """Put something to an engine, in a process of its own, and end."""
    engine = Engine(f"client-{os.getpid()}", job=job, secret=SECRET)
    peer = engine.connect(where).wait(WAIT)
    engine.share(engine.arena(1 << 16), "ours")
    box = peer.region("box").wait(WAIT)
    box[:8].put(b"12345678", notify=b"put").wait(WAIT)
    box[:8].prepare_put(b"12345678")()
    box[:40_000].get(np.zeros(40_000, np.uint8)).wait(WAIT)
    if how == "forks" and not os.fork():
        signal.pause()  # it lives on, with all that it has inherited
    if how == "forks by itself" and not _raw_fork():
        signal.pause()
    os.write(out, b"x")
    if how == "closes":
        engine.close()
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def _raw_fork():
    """Fork as a library in C does: no hook of Python's is called."""
    import ctypes

    return ctypes.CDLL(None).fork()


def clients(job, where, how, count):
    """Run clients, all at once; return the group of their processes."""
    out, into = os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if not child:
            try:
                os.setpgid(0, 0)
                client(job, where, how, into)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    os.close(into)
    said = b""
    while len(said) < count and (more := os.read(out, count)):
        said += more
    os.close(out)
    ends = [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in children]
    assert [0 if how == "closes" else -signal.SIGKILL] * count == ends
    return children


@pytest.mark.parametrize("many", [10, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("way", "how"), WAYS)
def test_nothing_is_left_of_clients(way, how, many):
    """Descriptors, mappings and threads; the memory can be taken back at once.

    None of it waits for the garbage collector, which may not come by for hours.
    """
    job = uuid.uuid4().hex
    with Engine("server", job=job, secret=SECRET, listen="127.0.0.1:0") as server:
        box = server.arena(1 << 20)
        region = server.share(box, "box")
        where = server.address if way == "tcp" else "server"
        groups = clients(job, where, how, 2)  # threads begin when they are needed
        before = _alone(server)
        gc.disable()
        try:
            for _ in range(many // AT_ONCE):
                groups += clients(job, where, how, AT_ONCE)
            left = left_since(before, collects=False)
        finally:
            gc.enable()
            for group in groups:
                _end(group)
        assert [] == left
        assert {} == server.peers
        assert [] == server.gone.peers
        server.unshare(region)
        assert server.notified(b"put", 2 + many).done()


def _alone(server):
    """Wait until an engine has no peers; return what is held then."""
    until = time.monotonic() + WAIT

    def is_over():
        names = [thread.name for thread in threading.enumerate()]
        return not (
            server.peers or server.gone.peers or any("client-" in n for n in names)
        )

    while not is_over() and time.monotonic() < until:
        time.sleep(0.01)
    gc.collect()
    return held()


def _end(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_what_was_given_up_is_free_again():
    """Marks of what was prepared, leases of names that were taken: there are two."""
    job = uuid.uuid4().hex
    with Engine("there", job=job) as there, Engine("here", job=job) as here:
        memory, source = there.arena(64), here.arena(64)
        there.share(memory, "box")
        peer = here.connect("there").wait(WAIT)
        box = peer.region("box").wait(WAIT).view
        del peer._marks[2:], there.board._free[2:]
        for _ in range(8):
            box.prepare_put(source)()
        for _ in range(8):
            with pytest.raises(CallError, match="shares 'box' already"):
                there.share(memory, "box")
        with there.lease() as lease:
            box.put(source, lease=lease.token).wait(WAIT)
