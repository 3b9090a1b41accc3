"""An engine has what it had, when its clients are gone: however they went."""

import gc
import os
import re
import signal
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from tests.host.transfer.conftest import SECRET
from tests.soon import soon

from stretto.transfer import Engine, loader

pytestmark = [pytest.mark.host, pytest.mark.timeout(170)]
WAIT = 30
AT_ONCE = 10
HOW = ("closes", "is killed", "forks", "forks by itself")
WAYS = [(way, how) for way in ("near", "tcp") for how in HOW][:-1]
"""Of the last the far end sees a connection that somebody holds."""


def held():
    """Return how many descriptors, shared mappings and threads this process has."""
    gc.collect()
    numbers = [one.name for one in Path("/proc/self/fd").iterdir()]
    maps = Path("/proc/self/maps").read_text(encoding="ascii")
    shared = re.findall(r"/memfd:stretto.*", maps)
    names = sorted(t.name for t in threading.enumerate() if "transfer" in t.name)
    return len(numbers), len(shared), names


def settled(want):
    """Return what is held, once it is no more than before, or after a while."""
    until = time.monotonic() + soon(10)
    while time.monotonic() < until:
        now = held()
        if now[0] <= want[0] and now[1] <= want[1] and now[2] == want[2]:
            break
        time.sleep(0.02)
    return now


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
    """Descriptors, mappings and threads; the memory can be taken back at once."""
    loader.load()
    job = uuid.uuid4().hex
    with Engine("server", job=job, secret=SECRET, listen="127.0.0.1:0") as server:
        box = server.arena(1 << 20)
        region = server.share(box, "box")
        where = server.address if way == "tcp" else "server"
        groups = clients(job, where, how, 2)  # threads begin when they are needed
        before = _alone(server)
        try:
            for _ in range(many // AT_ONCE):
                groups += clients(job, where, how, AT_ONCE)
            after = settled(before)
        finally:
            for group in groups:
                _end(group)
        assert before[0] >= after[0]
        assert before[1] >= after[1]
        assert before[2] == after[2]
        assert {} == server.peers
        assert [] == server._gone.peers
        server.unshare(region)
        assert server.notified(b"put", 2 + many).done()


@pytest.mark.parametrize("way", ["near", "tcp"])
def test_nothing_is_left_of_engines_of_the_same_process(way):
    """Nobody dies there: who closes says when it writes no more."""
    loader.load()
    job = uuid.uuid4().hex
    with Engine("server", job=job, secret=SECRET, listen="127.0.0.1:0") as server:
        server.share(server.arena(1 << 16), "box")
        where = server.address if way == "tcp" else "server"
        before = None
        for turn in range(20):
            with Engine(f"client-{turn}", job=job, secret=SECRET) as one:
                put = one.connect(where).wait(WAIT)["box"][:8].prepare_put(b"12345678")
                put()
            del put, one
            _alone(server)
            if turn == 1:
                before = held()
        after = settled(before)
        assert [] == server._gone.peers
        assert before[0] >= after[0]
        assert before[1] >= after[1]
        assert before[2] == after[2]


def _alone(server):
    """Wait until an engine has no peers; return what is held then."""
    until = time.monotonic() + WAIT

    def is_over():
        names = [thread.name for thread in threading.enumerate()]
        return not (
            server.peers or server._gone.peers or any("client-" in n for n in names)
        )

    while not is_over() and time.monotonic() < until:
        time.sleep(0.01)
    return held()


def _end(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
