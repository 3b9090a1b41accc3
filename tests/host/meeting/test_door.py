"""The front door: whatever knocks, the job meets."""

import json
import random
import socket
import time
from pathlib import Path

import pytest
from tests.chaos.scenarios import flood
from tests.host.meeting.test_join import free_port, secret_file

from stretto.meeting.wire import HEADER, MAGIC

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]
MEET = "say('met', meet(int(os.environ['R']), 2, {!r}, 20).rank)\n"
ODD = [
    {"say": "Proof", "nonce": "a", "mac": "\ud800", "host": "h"},
    {"say": "Proof", "nonce": "\udfff", "mac": "a", "host": "h"},
    {"say": "Proof", "nonce": "a", "mac": "a", "host": "\ud800"},
]


def reach(port):
    """Return a connection to the door, once it is there."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=2)
        except OSError:
            time.sleep(0.02)
    raise AssertionError("no door")


def test_a_stranger_with_an_odd_proof_ends_nothing(start, tmp_path):
    """Half of a surrogate pair is no text."""
    port = free_port()
    env = {"STRETTO_SECRET_FILE": secret_file(tmp_path)}
    zero = start(MEET.format(f"tcp://127.0.0.1:{port}"), R="0", **env)
    for said in ODD:
        text = json.dumps(said).encode()
        with reach(port) as sock:
            sock.sendall(HEADER.pack(MAGIC, len(text), 0) + text)
            while sock.recv(1000):
                pass
    one = start(MEET.format(f"tcp://127.0.0.1:{port}"), R="1", **env)

    assert ["met 0", "met 1"] == [zero.hear(), one.hear()]


def test_idle_connections_keep_nobody_out(start, tmp_path):
    """Those that only stand there make room."""
    port = free_port()
    env = {"STRETTO_SECRET_FILE": secret_file(tmp_path)}
    zero = start(MEET.format(f"tcp://127.0.0.1:{port}"), R="0", **env)
    crowd = [reach(port) for _ in range(300)]
    one = start(MEET.format(f"tcp://127.0.0.1:{port}"), R="1", **env)

    assert ["met 0", "met 1"] == [zero.hear(), one.hear()]
    for sock in crowd:
        sock.close()


def test_a_flood_of_hostile_frames_costs_nothing(tmp_path):
    """At the socket and at the door, and nothing is left of it."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert 400 == flood(random.Random(1), tmp_path, strangers=400)
    assert before == len(list(Path("/proc/self/fd").iterdir()))
