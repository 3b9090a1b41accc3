"""Lanes of several rails: whatever ends at whatever time, all comes once, in order."""

import ctypes
import mmap
import random
import socket
import time
from types import SimpleNamespace

import numpy as np
import pytest
from tests.soon import soon

from stretto.errors import RendezvousError
from stretto.fabric import hop
from stretto.fabric.hop.tcp.words import Link
from stretto.testing.ends import FIRST, CarrierEnd, connect, joined

pytestmark = pytest.mark.timeout(180)

RAILS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
"""Any address of the loopback interface may be listened at."""
SLOT = 1 << 17


@pytest.fixture(autouse=True)
def compiled():
    """The engine is compiled."""
    pytest.importorskip("numba")


def by_rails(count, **about):
    return joined(hop.get("tcp"), rails=RAILS[:count], **about)


def tend(pair):
    """Look after the rails now, and not at the next tenth of a second."""
    for end in pair.both:
        end.hop._asked_s = 0.0
        assert not end.hop.faults(), end.hop.faults()


def whole(pair, gone=None):
    """Return whether all lanes have all rails; one connection is gone by then."""
    tend(pair)
    for end in pair.both:
        for (_, nth), lane in end.hop._rails.lanes.items():
            if lane.missing or (gone and gone[0] == nth and gone[1] in lane.open):
                return False
    return True


def mend(pair, gone=None):
    """Wait until all is whole, and leave the processor to whoever mends."""
    until = time.monotonic() + 20
    while not whole(pair, gone):
        assert time.monotonic() < until
        for end in pair.both:
            end.hop.progress()
        time.sleep(0.001)


def used(end, lane=0):
    """Return by which rail an end sends on a lane."""
    one = end.hop._rails.lanes[end.peer, lane]
    return one.open[int(one._link[Link.NUMBER])][0].rail


def cut(end, lane, rng):
    """End the connection that a lane is sent by, or another; return its number."""
    one = end.hop._rails.lanes[end.peer, lane]
    number = int(one._link[Link.NUMBER])
    if number not in one.open or rng.random() < 0.3:
        number = rng.choice(list(one.open))
    one.open[number][1].shutdown(socket.SHUT_RDWR)
    return number


class Stream:
    """What one end puts and signals on a lane, and the other has to find there."""

    def __init__(self, end, other, lane, rng):
        self.end, self.other, self.lane, self.rng = end, other, lane, rng
        self.sent = self.seen = 0
        self.data = None
        self.offset = FIRST + SLOT * (2 * lane + (end.peer == 0))
        self.word = 64 + 8 * (2 * lane + (end.peer == 0))
        self.side = 1024 + 32 * (2 * lane + (end.peer == 0))
        self.is_put = False

    def step(self):
        """Send one more once the last one has come; see that it is what was sent."""
        if self.seen < self.sent:
            if self.other.words[self.word // 8] < self.sent:
                return
            at = self.other.landed(len(self.data), self.offset)
            assert np.array_equal(at, self.data), f"lane {self.lane}, {self.sent}"
            assert self.other.words[self.side // 8] == -self.sent
            self.seen = self.sent
        if self.data is None or self.is_put is False:
            few = self.rng.choice([8, 300, 5_000, 9_000, 70_000, SLOT])
            self.data = np.frombuffer(self.rng.randbytes(few), np.uint8)
            self.is_put = self.end.put(self.data, self.offset, self.lane)
        if self.is_put and self.end.signal(
            self.sent + 1, self.word, self.lane, self.side, (-self.sent - 1, 0, 0)
        ):
            self.sent += 1
            self.is_put = False


@pytest.mark.parametrize(
    ("rails", "lanes", "seconds"),
    [(2, 1, 3), (3, 2, 3), pytest.param(2, 4, 100, marks=pytest.mark.slow)],
)
def test_what_is_cut_anywhere_comes_whole(rails, lanes, seconds):
    """Connections end while both ends send by them; nothing is lost, or doubled."""
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    with by_rails(rails, lanes=lanes) as pair:
        streams = [
            Stream(end, other, lane, rng)
            for end, other in (pair.both, pair.both[::-1])
            for lane in range(lanes)
        ]
        until, cuts, last = time.monotonic() + seconds, 0, None
        while time.monotonic() < until:
            mend(pair, last)
            lane = rng.randrange(lanes)
            last = lane, cut(rng.choice(pair.both), lane, rng)
            cuts += 1
            goal = [s.sent + rng.randrange(6) for s in streams]

            def done(goal=goal):
                for stream in streams:
                    stream.step()
                tend(pair) if rng.random() < 0.01 else None
                return all(s.seen >= g for s, g in zip(streams, goal, strict=True))

            pair.until(done)
        assert cuts >= 2 * seconds / 3, (seed, cuts)


def test_what_is_sent_often_after_a_cut_is_in_order():
    """A word is raised a thousand times; whoever looks never sees it fall back."""
    rng = random.Random(5)
    with by_rails(2) as pair:
        sent, seen, last = 0, 0, None
        while sent < 3000:
            if pair.one.signal(sent + 1, 64, 0, 128, (sent + 1, 0, 0)):
                sent += 1
                if sent % 300 == 0:
                    last = 0, cut(pair.both[sent // 300 % 2], 0, rng)
            if sent % 300 == 299:
                mend(pair, last)
            for end in pair.both:
                end.hop.progress()
            now = int(pair.other.words[8])
            assert seen <= now <= sent
            assert pair.other.words[16] >= now
            seen = now
        pair.until(lambda: pair.other.words[8] == 3000)


def test_a_lane_goes_home_when_its_rail_works_again(caplog):
    """What is left, and what works again, is said once each."""
    with by_rails(2) as pair, caplog.at_level("INFO", "stretto.hop"):
        pair.signal(1, 64)
        pair.comes(1)
        assert used(pair.one) == 0
        assert pair.one.hop.by == "rails: 127.0.0.1, 127.0.0.2"
        one = pair.one.hop._rails.lanes[1, 0]
        one.open[0][1].shutdown(socket.SHUT_RDWR)
        pair.signal(2, 64)
        pair.comes(2)
        assert used(pair.one) == 1
        tend(pair)
        assert pair.one.hop.by == "rails: 127.0.0.1 (left), 127.0.0.2"
        mend(pair)
        pair.signal(3, 64)
        pair.comes(3)
        pair.until(lambda: [tend(pair), used(pair.one) == 0][1])
    said = [r.getMessage() for r in caplog.records if "rank 0: " in r.getMessage()]
    assert len(said) == 2, said
    assert said[0].startswith(
        "rank 0: the rail from 127.0.0.1 to rank 1 at 127.0.0.1 is left: "
    )
    assert said[1].endswith("at 127.0.0.1 works again")


def test_all_rails_down_is_a_fault():
    """It names the peer; and nobody is busy for ever."""
    with by_rails(2) as pair:
        pair.signal(1, 64)
        pair.comes(1)
        big = np.ones(SLOT, np.uint8)
        pair.put(big, FIRST)
        for _, sock in pair.one.hop._rails.lanes[1, 0].open.values():
            sock.shutdown(socket.SHUT_RDWR)
        pair.until(lambda: all(end.hop.faults() for end in pair.both))
        assert [1] == list(pair.one.hop.faults())
        assert not any(end.hop.busy() for end in pair.both)
        assert not pair.one.put(big, FIRST)


def test_a_peer_that_ends_is_heard_at_once():
    """However many connections there are."""
    with by_rails(3, lanes=2) as pair:
        pair.signal(1, 64)
        pair.comes(1)
        pair.other.hop.close()
        begun = time.monotonic()
        while not pair.one.hop.faults():
            pair.one.hop.progress()
            assert time.monotonic() - begun < soon(1.0)
        assert pair.one.hop.faults() == {1: "it ended the connection"}


def test_whoever_asks_after_the_end_hears_that_it_has_ended():
    """Nothing of what was closed is touched, and no thread begins."""
    with by_rails(2) as pair:
        pair.signal(1, 64)
        pair.comes(1)
        pair.one.hop.close()
        pair.one.hop._asked_s = 0.0
        assert pair.one.hop.has_ended
        assert pair.one.hop.faults() == {1: "it ended the connection"}
        assert list(pair.one.hop.descriptors) == []


def test_a_rail_that_comes_too_late_to_be_waited_for_is_no_fault(monkeypatch):
    """The time to connect may end while the others are still waited for."""
    real = socket.socket.connect_ex

    def down(self, where):
        return 113 if where[0] == RAILS[0] else real(self, where)

    monkeypatch.setattr(socket.socket, "connect_ex", down)
    ends = [CarrierEnd(hop.get("tcp"), rank, rails=RAILS[:2]) for rank in (0, 1)]
    assert connect(ends, within_s=0.5) == ["", ""]
    for end in ends:
        end.hop.close()


def test_who_does_not_come_leaves_no_door_open():
    """A hop that did not connect listens no more."""
    ends = [CarrierEnd(hop.get("tcp"), rank, rails=RAILS[:2]) for rank in (0, 1)]
    shares = [end.hop.share() for end in ends]
    with pytest.raises(
        RendezvousError, match=r"did not come to rank 1 .*within 0\.2 s"
    ):
        ends[1].hop.connect(shares, [0], 0.2)
    assert ends[1].hop._listeners == []
    for end in ends:
        end.hop.close()


def test_sources_are_kept_until_they_have_arrived():
    """A large put is busy until the peer's system has it, and soon is not."""
    with by_rails(2) as pair:
        big = np.arange(SLOT, dtype=np.int64).view(np.uint8)[:SLOT]
        took = []
        for turn in range(50):
            pair.put(big, FIRST)
            pair.signal(turn + 1, 64)
            pair.comes(turn + 1)
            begun = time.monotonic()
            pair.idle()
            took.append(time.monotonic() - begun)
        assert sorted(took)[40] < 0.02, "acknowledgements are late"


def test_who_computes_meanwhile_gets_one_connection_and_not_hundreds():
    """What has come waits to be taken, and is not asked for again."""
    with by_rails(2) as pair:
        pair.signal(1, 64)
        pair.comes(1)
        last = 0, cut(pair.one, 0, random.Random(1))
        pair.until(lambda: [tend(pair), all(missing(end) for end in pair.both)][1])
        time.sleep(1.5)
        came = [len(end.hop._rails._came) for end in pair.both]
        assert max(came) == 1, came
        mend(pair, last)


def missing(end):
    return end.hop._rails._missing or end.hop._rails._came


def test_a_lane_leaves_at_the_next_look_however_many_there_are():
    """Who looks a few times a second need not look 32 times first."""
    with by_rails(2, lanes=4) as pair:
        for lane in range(4):
            pair.signal(1, 64 + 8 * lane, lane)
        pair.until(lambda: all(pair.other.words[8 + lane] == 1 for lane in range(4)))
        for lane in range(4):
            pair.one.hop._rails.lanes[1, lane]._leave(1, "the test says so")
        tend(pair)
        pair.one.hop.progress()
        assert [used(pair.one, lane) for lane in range(4)] == [1, 0, 1, 0]
        tend(pair)
        pair.other.hop.progress()
        pair.other.hop.progress()
        assert [used(pair.other, lane) for lane in range(4)] == [1, 0, 1, 0]


def test_what_has_landed_may_be_given_back_whatever_is_sent_again():
    """Memory that is gone is not read, and what stands for it is passed over."""
    with by_rails(2) as pair:
        memory = mmap.mmap(-1, SLOT)
        memory[:] = b"x" * SLOT
        at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert pair.one.hop.put(1, 0, at, FIRST, SLOT)
        pair.signal(1, 64)
        pair.comes(1)
        memory.close()  # its pieces are kept: nobody has asked what arrived
        pair.one.hop._rails.lanes[1, 0]._leave(1, "the test says so")
        pair.until(lambda: used(pair.one) == 1)
        pair.signal(2, 64)
        pair.comes(2)
        assert (pair.other.landed(SLOT) == ord("x")).all()


def test_what_was_never_sent_and_is_gone_is_a_fault():
    """No bytes are made up for it."""
    with by_rails(2) as pair:
        memory = mmap.mmap(-1, SLOT)
        at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        memory.close()
        pair.one.hop.put(1, 0, at, FIRST, SLOT)
        pair.until(lambda: pair.one.hop.faults())
        assert pair.one.hop.faults() == {1: "Bad address"}


def test_one_rail_has_no_more_than_before():
    """No thread, no kept memory, no second connection."""
    with by_rails(1) as pair:
        assert pair.one.hop._rails is None
        assert len(pair.one.hop.descriptors) == 1


def test_a_rail_that_is_down_at_first_is_tried_later(monkeypatch):
    """Ranks meet by the others."""
    ends = []
    real = socket.socket.connect_ex

    def down(self, where):
        return 113 if where[0] == RAILS[0] and len(ends) == 0 else real(self, where)

    monkeypatch.setattr(socket.socket, "connect_ex", down)
    with by_rails(2) as pair:
        pair.signal(1, 64)
        pair.comes(1)
        assert used(pair.one) == 1
        ends.append(1)
        mend(pair)
        pair.until(lambda: [pair.one.signal(2, 64), used(pair.one) == 0][1])


def test_who_is_not_invited_does_not_come():
    """A number that was used, or a rail that is not there, is refused."""
    from stretto.fabric.hop.tcp.meet import LaneWay, Meet

    with by_rails(2) as pair:
        rails = pair.other.hop._rails
        assert not rails._is_invited(LaneWay(0, 0, 1, 1))
        assert not rails._is_invited(LaneWay(0, 1, 7, 0))
        assert not rails._is_invited(LaneWay(0, 0, 7, 2))
        assert rails._is_invited(LaneWay(0, 0, 9, 1))
        assert not rails._is_invited(LaneWay(0, 0, 9, 1))
        for odd in (-1, 1 << 50, "7", 2.0, None):
            theirs = {"rank": 0, "peer": 1, "lane": 0, "number": odd, "rail": 0}
            listeners = [one.dup() for one in pair.other.hop._listeners]
            meet = Meet(1, b"s" * 32, listeners, lambda way: True)
            assert "what is no lane" in meet._uninvited(theirs)
            for one in listeners:
                one.close()


def test_lanes_go_by_all_rails_where_tls_is_asked_for(monkeypatch):
    """Each by one connection: what TLS holds cannot be sent again."""
    tls = SimpleNamespace(is_asked=lambda: True, require=lambda: None)
    monkeypatch.setattr("stretto.fabric.hop.tcp.carrier.tls", tls)
    with by_rails(2, lanes=4) as pair:
        assert pair.one.hop._rails is None
        ends = [sock.getsockname()[0] for sock in pair.one.hop._sockets.values()]
        assert ends == ["127.0.0.1", "127.0.0.2"] * 2
