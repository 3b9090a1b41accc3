"""A hop over TCP: what is put is there when its signal is; strangers cost nothing."""

import random
import socket
import struct
import threading
import time
import types

import numpy as np
import pytest
from tests.pure.hop.ends import FIRST, join, joined
from tests.pure.hop.ends import make as make_by

from stretto.errors import RendezvousError
from stretto.fabric import hop
from stretto.fabric.hop.interface import address_towards, listen
from stretto.fabric.hop.tcp import options
from stretto.fabric.hop.tcp.carrier import TcpHop

pytestmark = pytest.mark.timeout(120)


def make(rank, **how):
    return make_by("tcp", rank, **how)


@pytest.fixture
def pair():
    """Two connected ranks."""
    pytest.importorskip("numba")
    with joined("tcp", lanes=2) as ends:
        yield ends


def until(condition, *ways):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        for way in ways:
            way.progress()


def test_random_bytes_at_the_port_cost_a_connection():
    """Ranks meet all the same."""
    rng = random.Random(3)
    ends = [make(r) for r in range(2)]
    where = ends[0][1].share()
    strangers = []
    for _ in range(20):
        sock = socket.create_connection((where["host"], where["port"]))
        sock.sendall(rng.randbytes(rng.randrange(1, 300)))
        strangers.append(sock)
    shares_of_one = ends[1][1].share()
    sock = socket.create_connection((shares_of_one["host"], shares_of_one["port"]))
    strangers.append(sock)

    assert ["", ""] == join([way for _, way in ends])
    for sock in strangers:
        sock.close()
    for _, way in ends:
        way.close()


def test_the_interface_is_found_by_route():
    """Or as users name it; what does not exist is refused with what does."""
    assert "127.0.0.1" == address_towards("127.0.0.1", {})
    assert "127.0.0.1" == address_towards("192.0.2.1", {"STRETTO_INTERFACE": "lo"})
    with pytest.raises(RendezvousError, match=r"wlan9: .* has no such .*it has .*lo"):
        address_towards("127.0.0.1", {"STRETTO_INTERFACE": "wlan9"})
    with pytest.raises(RendezvousError, match=r"no route from .* to nowhere\.invalid"):
        address_towards("nowhere.invalid", {})


def test_ports_are_those_that_users_name():
    """When all are taken, the sentence says so."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            RendezvousError, match=f"STRETTO_PORTS={port}: all of these"
        ):
            listen("127.0.0.1", {"STRETTO_PORTS": str(port)})
    with listen("127.0.0.1", {"STRETTO_PORTS": f"{port}-{port + 20}"}) as sock:
        assert port <= sock.getsockname()[1] <= port + 20


@pytest.mark.parametrize(
    "silence_ms", [700, pytest.param(3500, marks=pytest.mark.slow)]
)
def test_a_peer_that_reads_nothing_for_long_is_no_fault(pair, monkeypatch, silence_ms):
    """It is late: more is put than both systems hold, for longer than silence lasts."""
    monkeypatch.setattr(options, "_UNANSWERED_MS", silence_ms)
    (_, a), (memory, b) = pair
    data = np.arange(3_000_000 // 8, dtype=np.int64)
    until_s = time.monotonic() + silence_ms / 1000 + 1
    for nth in range(15):
        assert a.put(1, 0, data.ctypes.data, FIRST, 3_000_000)
        assert a.signal(1, 0, 0, nth + 1, 8, (0, 0, 0))
    while time.monotonic() < until_s:
        a.progress()
        a.wait(50_000)
        assert {} == a.faults()
    assert a.busy()
    until(lambda: memory[:8].view(np.int64)[0] == 15, a, b)

    assert np.array_equal(memory[FIRST : FIRST + 3_000_000].view(np.int64), data)
    assert ({}, {}) == (a.faults(), b.faults())


class Stand:
    """A connection of whose state the system says so much."""

    family = socket.AF_INET

    def __init__(self, *, unacked=0, probes=0, last_ack=0, least_rtt=50, name=b"bbr"):
        self.info = bytearray(options._INFO)
        self.info[options._PROBES] = probes
        said = {
            options._UNACKED: unacked,
            options._LAST_ACK: last_ack,
            options._LEAST_RTT: least_rtt,
        }
        for at, value in said.items():
            struct.pack_into("=I", self.info, at, value)
        self.name, self.refuses = name, ()

    def getsockopt(self, level, option, room):
        if option == socket.TCP_CONGESTION:
            return self.name.ljust(16, b"\0")
        return bytes(self.info[:room])

    def setsockopt(self, level, option, value):
        if value in self.refuses:
            raise PermissionError(1, "Operation not permitted")
        self.name = value


@pytest.mark.parametrize(
    ("state", "is_silent"),
    [
        ({"unacked": 3, "last_ack": 3600}, True),
        ({"unacked": 3, "last_ack": 3400}, False),
        ({"last_ack": 60_000}, False),
        ({"probes": 1, "last_ack": 60_000}, False),
        ({"probes": 4, "last_ack": 4_100}, True),
    ],
    ids=str,
)
def test_a_host_is_silent_when_it_owes_an_answer(state, is_silent):
    """Not while nothing is asked of it, nor while it says that it has no room."""
    assert is_silent == bool(options.silent(Stand(**state)))


@pytest.mark.parametrize(
    ("environment", "stand", "refuses", "chosen"),
    [
        ({}, {"name": b"bbr"}, (), "cubic"),
        ({}, {"name": b"bbr"}, (b"cubic",), "reno"),
        ({}, {"name": b"bbr"}, (b"cubic", b"reno"), "bbr"),
        ({}, {"name": b"bbr", "least_rtt": 30_000}, (), "bbr"),
        ({}, {"name": b"dctcp"}, (), "dctcp"),
        ({"STRETTO_TCP_CONGESTION": "bbr"}, {"name": b"bbr"}, (), "bbr"),
        ({"STRETTO_TCP_CONGESTION": "dctcp"}, {"name": b"cubic"}, (), "dctcp"),
    ],
    ids=str,
)
def test_a_way_to_a_host_nearby_is_not_paced(environment, stand, refuses, chosen):
    """As far as this process may choose; to hosts far away the system's word counts."""
    sock = Stand(**stand)
    sock.refuses = refuses

    assert chosen == options.unpaced(sock, environment)


def test_a_congestion_control_that_one_may_not_have_is_named():
    """With the variable, and what there is."""
    sock = Stand()
    sock.refuses = (b"wild",)
    with pytest.raises(
        RendezvousError, match=r"STRETTO_TCP_CONGESTION=wild: .* does not let .* it has"
    ):
        options.unpaced(sock, {"STRETTO_TCP_CONGESTION": "wild"})


def test_what_was_sent_arrives_although_its_sender_closes(pair):
    """Even where the sender leaves something unread: that must not reset the rest."""
    (_, a), (memory, b) = pair
    data = np.arange(2_000_000 // 8, dtype=np.int64)
    a._sockets[1, 0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_000_000)
    assert a.put(1, 0, data.ctypes.data, FIRST, 2_000_000)
    assert a.signal(1, 0, 0, 1, 8, (0, 0, 0))
    assert not a.busy()
    assert b.signal(0, 0, 0, 1, 8, (0, 0, 0))
    time.sleep(0.01)
    closing = threading.Thread(target=a.close)
    closing.start()
    time.sleep(0.1)
    until(lambda: memory[:8].view(np.int64)[0] == 1, b)
    closing.join()

    assert np.array_equal(memory[FIRST : FIRST + 2_000_000].view(np.int64), data)


def test_a_carrier_that_is_not_installed_says_what_to_install(monkeypatch):
    """NIXL's backends are those of its wheel."""
    from stretto.errors import MissingExtraError
    from stretto.fabric.hop.nixl import library

    monkeypatch.setattr(library, "_WHEELS", ("no_such_wheel",))
    library.missing.cache_clear()
    library.backends.cache_clear()
    with pytest.raises(MissingExtraError, match="carrier nixl: no NIXL here: pip inst"):
        hop.get("nixl").open_hop(None)
    assert {"ready"} == {*hop.get("nixl").doctor()}
    monkeypatch.setattr(library, "backends", lambda: ("UCX",))
    library.missing.cache_clear()
    monkeypatch.setenv("STRETTO_NIXL", "UXC")
    assert "STRETTO_NIXL=UXC: its wheel has UCX" == library.missing()
    library.missing.cache_clear()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("systm", "STRETTO_UCX='systm'; want 'system' or 'wheel'"),
        ("system", "STRETTO_UCX=system: .*LD_LIBRARY_PATH, or take the wheel's"),
    ],
)
def test_a_ucx_that_is_not_there_says_what_to_do(monkeypatch, asked, said):
    """A word that is not known is no word for the wheel's."""
    from stretto.errors import MissingExtraError
    from stretto.fabric.hop.ucx import library

    def refused(name, mode=0):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(library.ctypes, "CDLL", refused)
    monkeypatch.setenv("STRETTO_UCX", asked)
    library.load.cache_clear()
    with pytest.raises(MissingExtraError, match=said):
        library.load()


@pytest.mark.parametrize("lanes", [(True, False), (False, True)], ids=str)
def test_a_lane_that_answers_does_not_hide_one_that_is_silent(lanes):
    """Whichever of a peer's connections is asked last."""
    socks = {
        (1, lane): Stand(unacked=3, last_ack=60_000 if is_silent else 1)
        for lane, is_silent in enumerate(lanes)
    }
    hop = types.SimpleNamespace(_sockets=socks, _asked_s=-1e9, _silent={}, _rails=None)

    assert [1] == list(TcpHop._silent_peers(hop))
