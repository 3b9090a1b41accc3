"""Engines are told apart by identity: each is one peer, by whatever way it is found."""

import itertools
import json
import threading
import uuid

import numpy as np
import pytest
from tests.host.transfer.carriers import CARRIERS
from tests.host.transfer.conftest import SECRET
from tests.waiting import until

from stretto.errors import (
    CallError,
    ChecksumError,
    EngineLost,
    RendezvousError,
    StaleMemory,
    TransferCancelled,
    TransferError,
    TransferTimeout,
)
from stretto.transfer import Engine
from stretto.transfer.copying.words import Status
from stretto.transfer.engine.peer import Peer
from stretto.transfer.links.words import Kind
from stretto.transfer.ways.transfer import PreparedTransfer, Transfer

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 20


@pytest.fixture
def make():
    """Yield what makes engines of one job that listen, and end them."""
    job, made = uuid.uuid4().hex, []

    def engine(name, *, listen="127.0.0.1:0", job=job, **how):
        made.append(Engine(name, listen=listen, secret=SECRET, job=job, **how))
        return made[-1]

    yield engine
    for one in made:
        one.close()


@pytest.fixture
def two(make):
    """Return two engines; the first shares 512 blocks."""
    there, here = make("there"), make("here")
    there.share(np.zeros((512, 4096), np.uint8), "kv", "B=512 X=4096 uint8")
    return there, here


def places(engine):
    """Return all by which an engine is found from this host."""
    port = engine.address.rpartition(":")[2]
    return [engine.name, engine.address, f"localhost:{port}", engine.metadata]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_second_connect_gives_the_same_peer_and_ends_nothing(over, start, carrier):
    """By HOST:PORT, again and again, while blocks are under way."""
    engine, child = over(carrier), start(listen=True, hop=carrier)
    child.ask("share", name="kv", nbytes=512 << 12, layout="B=512 X=4096 uint8")
    peer = engine.connect(child.address).wait(WAIT)
    kv = peer.region("kv").wait(WAIT)
    ours = engine.share(
        np.ones((512, 4096), np.uint8), uuid.uuid4().hex, str(kv.layout)
    )
    puts = []
    for block in range(512):
        puts.append(kv[[block]].put(ours[[511 - block]]))
        if block % 64 == 0:
            assert engine.connect(child.address).wait(WAIT) is peer
    engine.batch(*puts).wait(WAIT)
    assert [512 << 12] == child.ask("sums", name="kv")
    assert [engine.name] == child.ask("peers")
    engine.unshare(ours)


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("then", range(4))
def test_every_way_to_an_engine_leads_to_the_same_peer(two, first, then):
    """Its name, its addresses, and its metadata, which a file may have kept."""
    there, here = two
    ways = places(there)
    ways[3] = json.loads(json.dumps(ways[3]))
    peer = here.connect(ways[first]).wait(WAIT)
    assert here.connect(ways[then]).wait(WAIT) is peer
    assert here.peer("there").wait(WAIT) is peer
    assert here.peer(peer.identity).wait(WAIT) is peer
    assert {there.metadata["identity"]: peer} == here.peers
    back = there.peer("here").wait(WAIT)
    for way in places(here):
        assert there.connect(way).wait(WAIT) is back
    peer["kv"][[1]].put(np.ones((1, 4096), np.uint8)).wait(WAIT)


@pytest.mark.parametrize("turn", range(6))
def test_threads_that_connect_at_once_get_one_peer(two, turn):
    """From both sides, by all ways; all of them are of use."""
    there, here = two
    gate, got = threading.Barrier(16), {"there": [], "here": []}

    def connect(engine, way):
        gate.wait(WAIT)
        got[engine.name].append(engine.connect(way).wait(WAIT))

    sides = [(here, way) for way in places(there)], [(there, w) for w in places(here)]
    pairs = [*sides[0], *sides[0], *sides[turn % 2], *sides[1]]
    threads = [threading.Thread(target=connect, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)

    assert 16 == len(got["there"]) + len(got["here"])
    for peers in got.values():
        assert 1 == len(set(peers))
        peers[0].check()
    here.peer("there").wait(WAIT)["kv"][[1]].put(np.ones((1, 4096), np.uint8)).wait(
        WAIT
    )


def test_engines_in_a_ring_meet_at_once(make):
    """Each goes to the next while another comes: nobody waits for who waits for him."""
    engines = [make(f"e{nth}") for nth in range(4)]
    founds = [
        one.connect(other.address) for one, other in itertools.permutations(engines, 2)
    ]
    for found in founds:
        found.wait(WAIT / 2).check()
    for one in engines:
        assert 3 == len(one.peers)


def test_two_engines_of_one_name_are_two_peers(make):
    """Neither takes the other's place; a name alone does not say which is meant."""
    here, twins = make("here"), [make("twin", job=uuid.uuid4().hex) for _ in range(2)]
    for nth, twin in enumerate(twins):
        twin.share(np.full(8, nth, np.uint8), "which")
    peers = [here.connect(twin.address).wait(WAIT) for twin in twins]
    for nth, peer in enumerate(peers):
        got = np.full(8, 9, np.uint8)
        peer["which"].get(got).wait(WAIT)
        assert [nth] * 8 == got.tolist()
        assert here.peer(peer.identity).wait(WAIT) is peer
    with pytest.raises(CallError, match="2 peers are named 'twin'; pass an identity"):
        here.peer("twin").wait(WAIT)
    twins[0].close()
    peers[0].region("never").event().wait(WAIT)
    assert here.peer("twin").wait(WAIT) is peers[1]


@pytest.mark.parametrize("way", ["name", "address"])
def test_nobody_is_handed_out_before_he_is_ready(make, monkeypatch, way):
    """Neither to who connects, nor to who knows him already, nor by his name."""
    there, here = make("there"), make("here")
    there.share(np.zeros(8, np.uint8), "box")
    tell, held = Peer.tell, []

    def late(peer, body, fds=()):
        if body["say"] == "ready" and peer.engine is there:
            held.append(lambda: tell(peer, body, fds))
        else:
            tell(peer, body, fds)

    monkeypatch.setattr(Peer, "tell", late)
    where = "there" if way == "name" else there.address
    founds = [here.connect(where)]
    back = there.peer("here").wait(WAIT)
    here.share(np.zeros(8, np.uint8), "mine")
    back.region("mine").wait(WAIT)  # so it is connected there, and is not ready here
    founds += [here.connect(where), here.peer("there"), here.connect(there.address)]
    assert not any(found.done() for found in founds)
    assert {} == here.peers
    held[0]()
    for found in founds:
        assert ("box",) == found.wait(WAIT).names


def test_metadata_finds_its_engine_and_no_other(make, monkeypatch):
    """On this host by name, elsewhere by address; another in its place is refused."""
    there, here = make("there", listen="0.0.0.0:0"), make("here")
    told = json.loads(json.dumps(there.metadata))
    host, _, port = told["address"].rpartition(":")
    assert host not in ("", "0.0.0.0")
    assert port == there.address.rpartition(":")[2]
    assert not here.connect(told).wait(WAIT).is_far
    far = make("far")
    monkeypatch.setenv("STRETTO_HOST", "another")
    told["address"] = f"127.0.0.1:{port}"
    assert far.connect(told).wait(WAIT).is_far
    with pytest.raises(RendezvousError, match="is another engine by now"):
        make("late").connect({**told, "identity": "0" * 32}).wait(WAIT)
    with pytest.raises(
        RendezvousError, match=r"does not listen; start it with listen="
    ):
        far.connect({**told, "identity": "0" * 32, "address": ""})
    with pytest.raises(CallError, match=r"want what `engine.metadata` is"):
        far.connect({"name": "there"})


def test_an_engine_that_connects_with_itself_is_told_so(make):
    """By its name or address."""
    here = make("here")
    for way in places(here)[:2]:
        with pytest.raises(RendezvousError, match="is this engine itself"):
            here.connect(way).wait(WAIT)


ENDS = {
    Status.DIFFERS: (ChecksumError, "what arrived is not what was sent", ""),
    Status.CANCELLED: (TransferCancelled, "cancelled", "the peer took it back"),
    Status.STALE: (StaleMemory, "given to someone else", ""),
    Status.FAILED: (TransferError, "the kernel refuses", "the peer refuses it"),
    Status.LATE: (TransferTimeout, "not done before its deadline", ""),
}


@pytest.mark.parametrize("peer_says", [False, True])
@pytest.mark.parametrize("status", [one for one in Status if one is not Status.DONE])
def test_each_status_is_one_error(two, status, peer_says):
    """Whoever says so: what was taken back does not say that bytes were wrong."""
    there, here = two
    peer = here.connect(there.address).wait(WAIT)
    kind, why, theirs = ENDS[status]
    for of_prepared in (False, True):
        x = Transfer(here.loop, peer, "tcp", nbytes=1, pieces=1)
        if of_prepared and not peer_says:
            with pytest.raises(kind, match=why):
                PreparedTransfer(x, None, None)._raise(status)
        else:
            x.end(status, peer_says=peer_says)
        with pytest.raises(kind, match=theirs if peer_says and theirs else why):
            x.wait(0)
        assert type(x.error) is kind


def test_a_get_that_its_peer_ends_early_has_failed(two):
    """Its end came before its bytes: that was a success."""
    there, here = two
    there.share(np.ones(1 << 20, np.uint8), "box")
    peer = here.connect(there.address).wait(WAIT)
    region = peer.region("box").wait(WAIT)
    until(lambda: there.peers)
    (back,) = there.peers.values()
    back._opened = lambda *request: None  # nobody answers
    x = region.get(np.zeros(1 << 20, np.uint8))
    (number,) = peer._receiving
    back.say(Kind.END, number, int(Status.DONE), 0)
    with pytest.raises(TransferError, match="the peer refuses it"):
        x.wait(WAIT)


@pytest.mark.parametrize("arena", [True, False])
def test_what_was_prepared_says_so_after_the_end(engine, start, arena):
    """Between two processes of a host, and moves nothing, though both live on."""
    child = start()
    peer = engine.connect(child.address).wait(WAIT)
    child.ask("share", name="small", nbytes=64, arena=arena)
    region = peer.region("small").wait(WAIT)
    got = np.zeros(8, np.uint8)
    put, get = region[:8].prepare_put(b"12345678"), region[:8].prepare_get(got)
    peer.close()
    for prepared in (put, get):
        with pytest.raises(EngineLost, match="this engine closed the connection"):
            prepared()
    assert [0] == child.ask("sums", name="small")
    assert not got.any()
