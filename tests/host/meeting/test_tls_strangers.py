"""Hostile ends of TLS connections: each ends its own connection, and no other."""

import contextlib
import random
import shutil
import socket
import ssl
import struct
import threading
import time

import pytest
from tests.host.hop.test_tls import authority
from tests.host.meeting.test_door import MEET, reach
from tests.host.meeting.test_join import free_port, secret_file

from stretto.meeting import tls
from stretto.meeting.strangers import first_to_go

pytestmark = [
    pytest.mark.host,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl"),
]
RESET = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module", autouse=True)
def pump():
    """Return the thread that carries all connections; it stays."""
    return tls._pump()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Have TLS asked for, with certificates."""
    made = authority(tmp_path, "job")
    monkeypatch.setenv(tls.VARIABLE, made)
    return made


@pytest.fixture
def door():
    """Return a socket that listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def joined(door, pump):
    """Yield what joins two ends by TLS, ours both; nothing is left of them."""
    with contextlib.ExitStack() as kept:

        def join():
            far = socket.create_connection(door.getsockname())
            near, _ = door.accept()
            ends = tls.secured(near, server=True), tls.secured(far, server=False)
            for end in ends:
                end.settimeout(20)
                kept.enter_context(end)
            return ends

        yield join
    until = time.monotonic() + 20
    while (pump._links or pump._new) and time.monotonic() < until:
        time.sleep(0.01)
    assert not pump._links


def answers(ends):
    """Check that what is said at one end is heard at the other."""
    for one, other in (ends, ends[::-1]):
        one.sendall(b"still here")
        heard = b""
        while len(heard) < 10:
            heard += other.recv(10 - len(heard))
        assert b"still here" == heard


def certified(folder):
    """Return the context of somebody with a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    context.load_verify_locations(f"{folder}/ca.pem")
    return context


def intrude(sock, context, rng):
    """Make noise of some kind, and leave in some way."""
    with contextlib.suppress(OSError):
        sock.settimeout(5)
        if rng.random() < 0.6:
            sock = context.wrap_socket(sock)
        sock.settimeout(0.2)
        sock.sendall(rng.randbytes(rng.choice([1, 5, 1000, 300_000, 600_000])))
        if rng.random() < 0.5:
            sock.recv(1)
    with contextlib.suppress(OSError):
        if rng.random() < 0.5:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


def test_noise_that_nobody_reads_ends_its_own_connection_only(folder, door, joined):
    """Whoever reads a little of it hangs up: a reset, at our end of the pair."""
    others = joined()
    answers(others)

    def noisy():
        with contextlib.suppress(OSError):
            raw = socket.create_connection(door.getsockname())
            with certified(folder).wrap_socket(raw) as loud:
                loud.sendall(random.Random(0).randbytes(300_000))
                loud.recv(1)

    comer = threading.Thread(target=noisy)
    comer.start()
    near, _ = door.accept()
    ours = tls.secured(near, server=True)
    ours.settimeout(20)
    assert ours.recv(100)
    ours.close()
    comer.join(20)
    answers(others)
    answers(joined())


def test_whatever_strangers_do_the_pump_goes_on(folder, door, joined):
    """Noise before, in and after the handshake; resets at either end, at any time."""
    rng, others, context = random.Random(7), joined(), certified(folder)
    for _ in range(60):
        raw = socket.create_connection(door.getsockname())
        seed = rng.random()
        comer = threading.Thread(
            target=intrude, args=(raw, context, random.Random(seed))
        )
        comer.start()
        near, _ = door.accept()
        with contextlib.suppress(OSError), tls.secured(near, server=True) as ours:
            ours.settimeout(rng.choice([0.001, 0.05]))
            ours.recv(rng.choice([1, 8, 100_000]))
        comer.join(20)
        answers(others)


def test_a_step_that_raises_anything_ends_one_connection(folder, joined, monkeypatch):
    """Also what nobody thought of."""
    others, move = joined(), tls._Link.move
    answers(others)
    bad = joined()
    answers(bad)
    victim = tls._pump()._links[-1]

    def odd(link):
        if link is victim:
            raise RuntimeError("nobody thought of it")
        move(link)

    monkeypatch.setattr(tls._Link, "move", odd)
    bad[0].sendall(b"x")
    bad[1].sendall(b"x")
    assert any(end.recv(10) in (b"", b"x") for end in bad)
    answers(others)


def test_a_door_with_tls_outlives_who_resets_at_once(start, tmp_path, folder):
    """Before it is taken, with bytes on their way: ranks still meet."""
    port = free_port()
    env = {"STRETTO_SECRET_FILE": secret_file(tmp_path), "STRETTO_TLS": folder}
    zero = start(MEET.format(f"tcp://127.0.0.1:{port}"), R="0", **env)
    for nth in range(100):
        with reach(port) as sock:
            if nth % 2:
                sock.sendall(b"noise")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    one = start(MEET.format(f"tcp://127.0.0.1:{port}"), R="1", **env)

    assert ["met 0", "met 1"] == [zero.hear(), one.hear()]


def test_the_oldest_of_the_busiest_source_makes_room():
    """Whoever comes alone from elsewhere stays."""
    crowd = {"a": "10.0.0.1", "b": "10.0.0.9", "c": "10.0.0.9", "d": "10.0.0.9"}
    assert "b" == first_to_go(crowd)
    assert first_to_go({}) is None
