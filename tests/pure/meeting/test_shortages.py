"""Who lacks descriptors, threads, memory or a rendezvous is who is named."""

import os
import resource
import socket
import threading
from contextlib import contextmanager

import pytest
from tests.held import held, left_since
from tests.pure.meeting.test_membership import view as view_of

from stretto.errors import RendezvousError, SharedMemoryError
from stretto.fabric import process
from stretto.fabric.events import (
    Heard,
    NoRoom,
    Tick,
)
from stretto.fabric.loop import start_thread
from stretto.fabric.meeting.greet import greet
from stretto.fabric.meeting.groups import world
from stretto.fabric.meeting.hosting.rendezvous import Rendezvous
from stretto.fabric.meeting.membership import Membership
from stretto.fabric.memory import create_file
from stretto.fabric.messages import Departed, Hello, Lost, Verdict
from stretto.fabric.process import host_id
from stretto.fabric.view import Heard as Told
from stretto.fabric.view import HubEnded
from stretto.fabric.wire import Connection, Descriptor, Frame, Refused
from stretto.fabric.world import World


@contextmanager
def few_descriptors(more):
    """Let this process open so many more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as one:  # noqa: PTH123 - its number is the next
        at = one.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (at + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def pair():
    """Return two connections to one another, of members."""
    both = [Connection(s) for s in socket.socketpair()]
    for one in both:
        one.trust()
    return both


@pytest.mark.parametrize(("room", "is_refused"), [(0, True), (40, False)])
def test_who_has_no_room_for_descriptors_knows_that_it_is_itself(room, is_refused):
    """Not the sender is to blame when what it sent was cut off."""
    one, other = pair()
    one.post({"say": "x"}, [Descriptor(os.dup(0)) for _ in range(3)])
    frames = []
    with few_descriptors(room):
        while not frames:  # descriptors come before the rest of their frame
            frames = other.receive()
    one.close()
    other.close()
    (frame,) = frames
    if is_refused:
        assert isinstance(frame, Refused)
        assert frame.is_ours
        assert f"pid {os.getpid()}" in frame.why
    else:
        assert isinstance(frame, Frame)
        assert 3 == len(frame.descriptors)


def hello(rank):
    """Return a rank's first words."""
    return Hello(
        identity=f"m{rank}",
        rank=rank,
        num_ranks=2,
        pid=7,
        host=host_id(),
        version="1",
        start_s=5.0,
        within_s=5.0,
    )


@pytest.mark.parametrize(("later", "blamed"), [(None, (0,)), ("again", (1,))])
def test_a_host_without_room_is_blamed_for_who_could_not_come(later, blamed):
    """As long as nobody has been let in since."""
    of = {"deadline": 5.0, "timeout_s": 5.0, "generation": 1, "host_rank": 0}
    machine = Rendezvous(World(2, **of))
    if later is None:
        machine.on(Heard(link=0, message=hello(0)), 0.0)
    machine.on(NoRoom(why="Too many open files"), 0.1)
    if later is not None:
        machine.on(Heard(link=0, message=hello(0)), 0.2)
    said = machine.on(Tick(), 5.1)

    (verdict,) = [a.message for a in said if hasattr(a, "message")]
    assert isinstance(verdict, Verdict)
    assert blamed == verdict.blamed
    assert ("Too many open files" in verdict.text) == (later is None)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (
            Lost(identity="m0", how="was killed by SIGKILL"),
            "rank 0 was killed by SIGKILL",
        ),
        (Departed(identity="m0"), "rank 0 closed its communicator"),
    ],
)
def test_without_a_rendezvous_an_exchange_says_who_hosted_it(end, words):
    """A group without rank 0 goes on; what needs the rendezvous fails at once."""
    view = Membership(view=view_of(3))
    view.join(world(3))
    assert view.hub_fault("split") is None
    view.on(Told(message=end), 0.0)
    assert view.hub_fault("split") is None
    view.on(HubEnded(), 0.1)

    fault = view.hub_fault("split")
    assert fault.text.startswith(words)
    assert "which split needs" in fault.text
    assert (0,) == fault.blamed


def test_a_file_that_cannot_be_made_is_an_error_of_ours(monkeypatch):
    """And its descriptor is given back."""

    def full(fd, nbytes):
        raise OSError(27, "File too large")

    before = held()
    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(SharedMemoryError, match="4096 bytes: File too large; want"):
        create_file(4096)
    assert [] == left_since(before)


def test_a_thread_that_cannot_start_is_an_error_of_ours(monkeypatch):
    """It says what to look at."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RendezvousError, match=r"cannot start a thread.*ulimit -u"):
        start_thread(threading.Thread(target=print))


def test_a_host_id_that_cannot_be_read_is_none(monkeypatch):
    """It is not taken for that of another host: whoever lacks descriptors says so."""
    monkeypatch.delenv("STRETTO_HOST", raising=False)
    process._boot_id.cache_clear()
    with few_descriptors(0), pytest.raises(OSError, match="Too many open files"):
        host_id()
    known = host_id()
    with few_descriptors(0):
        assert known == host_id()  # it has been read, and does not change


def test_who_cannot_read_its_host_id_says_what_it_lacks(monkeypatch):
    """And gives its connection back."""
    monkeypatch.delenv("STRETTO_HOST", raising=False)
    process._boot_id.cache_clear()
    one, other = pair()
    said = "rank 1: cannot tell on which host it is: .*Too many open files.*ulimit -n"
    with few_descriptors(0), pytest.raises(RendezvousError, match=said):
        greet(one, rank=1, num_ranks=2, deadline_s=1.0, start_s=1.0)
    frames = other.receive()
    with pytest.raises(EOFError):
        other.receive()
    other.close()
    assert 1 == len(frames)
    assert "cannot tell on which host" in frames[0].body["failure"]
