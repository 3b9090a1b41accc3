"""The hub's shell inside this process, and ranks that are stopped rather than dead."""

import signal
import socket
import subprocess
import sys
import time

import pytest

from stretto.fabric.meeting.hosting import hub as hub_module
from stretto.fabric.meeting.hosting.hub import Hub
from stretto.fabric.meeting.hosting.rendezvous import Rendezvous
from stretto.fabric.world import World

pytestmark = [pytest.mark.host, pytest.mark.timeout(20)]


@pytest.fixture
def served(tmp_path):
    """A hub for two ranks, and the path it serves."""
    until = time.monotonic() + 5
    machine = Rendezvous(World(2, deadline=until, timeout_s=5.0, generation=1))
    hub, path = Hub(machine), str(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        hub.serve(listener)
        yield hub, path
        hub.close()


def come(path):
    """Return a connection to a path."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    sock.settimeout(1.0)
    return sock


def test_a_peer_of_another_user_is_hung_up_on(served, monkeypatch):
    """Before it can say a word; one of our own may stay."""
    hub, path = served
    with come(path) as sock:
        hub.step(0.1)
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    monkeypatch.setattr(hub_module, "peer_uid", lambda sock: 12345)
    with come(path) as sock:
        hub.step(0.1)
        assert b"" == sock.recv(1)


def test_a_stranger_that_stays_silent_is_hung_up_on(served, monkeypatch):
    """It has a few seconds to say who it is."""
    hub, path = served
    monkeypatch.setattr(hub_module, "STRANGER_S", 0.05)
    with come(path) as sock:
        hub.step(0.1)
        hub.step(0.2)
        hub.step(0.2)
        assert b"" == sock.recv(1)


def test_more_strangers_than_the_hub_minds_are_hung_up_on(served, monkeypatch):
    """The oldest first, so that nobody can use up its descriptors."""
    hub, path = served
    monkeypatch.setattr(hub_module, "MOST_STRANGERS", 1)
    with come(path) as one, come(path) as two:
        hub.step(0.1)
        hub.step(0.1)
        assert b"" == one.recv(1)
        two.settimeout(0.05)
        with pytest.raises(TimeoutError):
            two.recv(1)


STOPPED = """
m = meet({rank}, 2, 'job', 2.0)
say('met', m.rank)
sys.stdin.readline()
begin = time.monotonic()
try:
    m.world.exchange({{}}, tag='talk')
except StrettoError as e:
    say(type(e).__name__, round(time.monotonic() - begin, 2), e)
"""


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_is_stopped_does_not_hang_the_other(start, stopped):
    """Also when it hosts the hub: then the hub is blamed."""
    ranks = [start(STOPPED.format(rank=rank)) for rank in (0, 1)]
    assert ["met 0", "met 1"] == [rank.hear() for rank in ranks]
    ranks[stopped].kill(signal.SIGSTOP)
    other = ranks[1 - stopped]
    other.process.stdin.write("\n")
    other.process.stdin.flush()
    kind, took_s, text = other.hear().split(" ", 2)

    assert "CollectiveTimeout" == kind
    blamed = "the rendezvous does not answer" if stopped == 0 else "rank 1 did not come"
    assert blamed in text
    assert float(took_s) < 10


PORTABLE = """
import os, select, signal, socket, sys
import multiprocessing.spawn, subprocess  # these ask which system this is
import numpy
for module, names in {
    os: "getuid fchmod memfd_create pidfd_open pread sysconf",
    select: "poll epoll",
    signal: "SIGKILL SIGSTOP",
    socket: "AF_UNIX SO_PEERCRED SCM_RIGHTS CMSG_SPACE MSG_CTRUNC",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "win32"
import stretto.fabric.meeting.join
from stretto.fabric.meeting.launching import child, launch
from stretto.fabric.meeting.environment import find_place
try:
    stretto.fabric.meeting.join.join(find_place(0, 1, "x"))
except stretto.RendezvousError as e:
    print(e)
"""


def test_what_only_linux_has_is_asked_for_late(environment):
    """Every module can be imported elsewhere; meeting is refused in one line."""
    done = subprocess.run(
        [sys.executable, "-c", PORTABLE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "" == done.stderr
    assert "which this system lacks" in done.stdout
