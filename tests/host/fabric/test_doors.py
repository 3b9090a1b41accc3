"""Three doors, one porch: a job's rank 0, a rank of a hop, an engine that listens.

Whoever knocks costs a connection, and who knows the secret comes in.
"""

import contextlib
import os
import random
import shutil
import socket
import struct
import threading
import time
import uuid

import pytest
from tests.held import held, left_since
from tests.host.hop.test_tls import authority

from stretto.errors import RendezvousError
from stretto.fabric import handshake, porch, tls
from stretto.fabric.handshake import WORDS, Handshake
from stretto.fabric.hop.tcp.meet import LaneWay, Meet
from stretto.fabric.meeting.hosting.door import Door, knock
from stretto.fabric.meeting.hosting.hub import Hub
from stretto.fabric.meeting.hosting.rendezvous import Rendezvous
from stretto.fabric.world import World
from stretto.transfer import Engine
from stretto.transfer.loader import functions

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
SECRET, WAIT = b"s" * 32, 40
RESET = struct.pack("ii", 1, 0)
PURPOSES = {"meeting": "meeting 2", "hop": "hop 3", "transfer": "transfer 3"}


class MeetingDoor:
    """Rank 0's, which shows others where its hub is."""

    def __init__(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.where = listener.getsockname()
        world = World(2, deadline=time.monotonic() + 600, timeout_s=600.0, generation=1)
        self.hub = Hub(Rendezvous(world))
        Door(self.hub, self.where, "/path", SECRET, listener)
        self.hub.start()

    def come(self, secret=SECRET, within_s=WAIT):
        stop_at = time.monotonic() + within_s
        while time.monotonic() < stop_at:
            if (answer := knock(self.where, secret, stop_at)) is not None:
                assert "/path" == answer.path
                return
        raise RendezvousError("it was sent away, again and again")

    def close(self):
        self.hub.loop.stop()
        assert self.hub.loop.join(20)


class HopDoor:
    """That of a rank, to which ever more of smaller ranks come."""

    rank = 500

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.where, self.come_next = self.listener.getsockname(), 0
        self.is_over, self.made = threading.Event(), {}
        self.shares = {self.rank: {"host": self.where[0], "port": self.where[1]}}
        self.thread = threading.Thread(target=self._wait)
        self.thread.start()

    def _wait(self):
        def check():
            if self.is_over.is_set():
                raise RendezvousError("the test is over")

        with self.listener, contextlib.suppress(RendezvousError):
            shares = dict.fromkeys(range(self.rank), self.shares[self.rank])
            meet = Meet(self.rank, SECRET, [self.listener], lambda way: True)
            meet.run(shares, [], lambda: False, 600.0, check)

    def come(self, secret=SECRET, within_s=WAIT):
        rank, self.come_next = self.come_next, self.come_next + 1
        with socket.create_server(("127.0.0.1", 0)) as unused:
            meet = Meet(rank, secret, [unused], lambda way: False)
            way, many = LaneWay(self.rank, 0, 0, 0), self.shares
            meet.run(many, [way], lambda: meet.made, within_s, lambda: None)
        if not meet.made:
            raise meet.absent(way, many, within_s)
        meet.made[way].close()

    def close(self):
        self.is_over.set()
        self.thread.join(20)
        assert not self.thread.is_alive()


class TransferDoor:
    """That of an engine."""

    def __init__(self):
        functions()
        self.engine = Engine(uuid.uuid4().hex, listen="127.0.0.1:0", secret=SECRET)
        host, port = self.engine.address.rsplit(":", 1)
        self.where = host, int(port)

    def come(self, secret=SECRET, within_s=WAIT):
        with Engine(uuid.uuid4().hex, secret=secret) as comer:
            comer.connect(self.engine.address).wait(within_s)

    def close(self):
        self.engine.close()


KINDS = {"meeting": MeetingDoor, "hop": HopDoor, "transfer": TransferDoor}


@pytest.fixture(params=KINDS)
def door(request):
    """One of the three, open for as long as a test lasts; nothing is left of it."""
    made = KINDS[request.param]()
    made.purpose = PURPOSES[request.param]
    yield made
    made.close()


@pytest.fixture
def crowd(door):
    """Return what sends silent connections; they are closed at the end."""
    with contextlib.ExitStack() as held:

        def come(many):
            made = [socket.create_connection(door.where) for _ in range(many)]
            return [held.enter_context(sock) for sock in made]

        yield come


def heard(sock):
    """Return all that a door says to a connection until it hangs up."""
    sock.settimeout(WAIT)
    said = b""
    with contextlib.suppress(ConnectionError):
        while more := sock.recv(1000):
            said += more
    return said


def refused(word):
    """Return what a door says to who has proved nothing."""
    return handshake._frame(handshake._NO, word.encode())


def test_whatever_strangers_say_a_true_one_comes_in(door):
    """Noise, halves of a hail, proofs of nothing; resets, at any point."""
    rng = random.Random(5)
    for nth in range(40):
        shake = Handshake(b"x" * 32, door.purpose, {"rank": nth}, comes=True)
        with contextlib.suppress(OSError), socket.create_connection(door.where) as sock:
            sock.settimeout(WAIT)
            hail = shake.begin()
            sock.sendall(
                rng.choice([rng.randbytes(99), hail[: rng.randrange(99)], hail])
            )
            if rng.random() < 0.5:
                proof = shake.hear(sock.recv(4000))
                sock.sendall(rng.choice([proof, proof[:40], proof[::-1], hail]))
            if rng.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    door.come()


def test_silent_ones_push_nobody_out_who_proves_himself(door, crowd, monkeypatch):
    """The oldest of those that most have come from goes, and is told that."""
    monkeypatch.setattr(porch, "MOST_STRANGERS", 16)
    first, *_ = crowd(1)
    crowd(40)
    assert heard(first).endswith(refused("full"))
    door.come()
    crowd(40)
    door.come()


def test_who_does_not_know_the_secret_is_told_so(door):
    """He, and who has another; who knows it comes in before and after."""
    door.come()
    with pytest.raises(RendezvousError, match=WORDS["secret"]):
        door.come(b"x" * 32, 1.0)
    door.come()


def test_who_is_slow_is_not_told_that_he_does_not_know_the_secret(door, monkeypatch):
    """A busy host takes seconds: they are given, and then named."""
    monkeypatch.setattr(porch, "STRANGER_S", 0.3)
    hear = Handshake.hear

    def late(shake, data):
        if shake._comes and not shake._said:
            time.sleep(0.5)
        return hear(shake, data)

    monkeypatch.setattr(Handshake, "hear", late)
    with pytest.raises(RendezvousError, match=r"too slow|again and again") as e:
        door.come(within_s=4.0)
    assert WORDS["secret"] not in str(e.value)
    with socket.create_connection(door.where) as silent:
        assert heard(silent).endswith(refused("late"))
    monkeypatch.setattr(porch, "STRANGER_S", 30.0)
    door.come()


def test_a_door_takes_nothing_for_long(door):
    """Descriptors of those that came and went are given back."""
    door.come()
    before = held()
    for _ in range(30):
        with socket.create_connection(door.where) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            heard(sock)
    assert [] == left_since(before)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
@pytest.mark.parametrize("encrypts", ["door", "comer"])
def test_one_end_alone_that_speaks_tls_is_named(door, tmp_path, monkeypatch, encrypts):
    """At once, since both speak first; and who speaks as the door does comes in."""
    monkeypatch.setenv(tls.VARIABLE, authority(tmp_path, "job"))
    secured, both = tls.secured, []

    def some(sock, *, server, **how):
        does = bool(both) or (encrypts == "door") == server
        return secured(sock, server=server, **how) if does else sock

    monkeypatch.setattr(tls, "secured", some)
    with pytest.raises(RendezvousError, match=r"TLS|again and again"):
        door.come(within_s=2.0)
    both.append(1)
    door.come()


def test_a_door_that_proves_nothing_puts_no_words_into_an_error():
    """Of the three it is the engine's comer that gives up, and says why."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Engine(uuid.uuid4().hex, secret=b"s") as e,
    ):
        found = e.connect(f"127.0.0.1:{server.getsockname()[1]}")
        odd = server.accept()[0]
        odd.sendall(handshake._frame(handshake._NO, b"run this to repair it"))
        with pytest.raises(RendezvousError) as caught:
            found.wait(WAIT)
        assert "run this" not in str(caught.value)
        odd.close()


def test_who_has_proved_himself_is_no_stranger(monkeypatch):
    """However many come before he says hello, he is let in."""
    from stretto.transfer.engine.meet import Talk

    monkeypatch.setattr(porch, "MOST_STRANGERS", 16)
    hello = Talk._hello
    with contextlib.ExitStack() as held:
        there = TransferDoor()
        held.callback(there.close)

        def slowly(talk):
            for _ in range(40):
                held.enter_context(socket.create_connection(there.where))
            hello(talk)

        monkeypatch.setattr(Talk, "_hello", slowly)
        there.come()


def test_a_door_without_descriptors_sends_a_stranger_away(door, crowd, monkeypatch):
    """And goes on; without strangers it waits until there are some again."""
    crowd(4)
    accept, left = socket.socket.accept, [3]

    def lacks(sock):
        if sock.getsockname() == door.where and left[0]:
            left[0] -= 1
            raise OSError(24, os.strerror(24))
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", lacks)
    door.come()
    assert [0] == left


def test_why_an_earlier_try_failed_is_said_when_the_last_one_is_late():
    """The first meets who speaks something else, all later ones who says nothing."""
    kept = []

    def serve(listener):
        with contextlib.suppress(OSError):
            while True:
                kept.append(listener.accept()[0])
                if len(kept) == 1:
                    kept[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 8)

    with contextlib.ExitStack() as stack:
        listener, unused = (
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(2)
        )
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        host, port = listener.getsockname()
        way, shares = LaneWay(9, 0, 0, 0), {9: {"host": host, "port": port}}
        meet = Meet(0, SECRET, [unused], lambda way: False)
        meet.run(shares, [way], lambda: meet.made, 1.5, lambda: None)
        said = str(meet.absent(way, shares, 1.5))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(20)
        for sock in kept:
            sock.close()

    assert len(kept) >= 2
    assert ": late." not in said, said
