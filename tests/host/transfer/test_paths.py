"""Two processes: every path moves the same bytes, and says which path it is."""

import asyncio
import itertools
import select

import numpy as np
import pytest
from tests.host.transfer.carriers import CARRIERS
from tests.pure.transfer.oracle import elements, key, memory

from stretto.errors import (
    CallError,
    ChecksumError,
    LayoutError,
    TransferError,
    TransferTimeout,
    UnknownNameError,
)
from stretto.transfer import Layout, kv_layout
from stretto.transfer.ways import transfer as transfers

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
PATHS = ("shared memory", "cross-memory", "stage", *CARRIERS)
WAIT = 20
_numbers = itertools.count()


@pytest.fixture(params=PATHS, scope="module")
def pair(request, our_engine, starts, over):
    """Return a child, our peer for it, and keywords to share by a path."""
    path = request.param
    is_far, engine = path in CARRIERS, over(path)
    child = starts(listen=is_far, hop=path if is_far else "tcp")
    peer = engine.connect(child.address).wait(WAIT)
    if path == "stage":
        peer.reaches, peer.why_not = False, "the test says so"
    return child, peer, {"arena": path == "shared memory"}, path


def shared(child, peer, name="buf", nbytes=1 << 20, **how):
    """Have a child share memory by a new name, and return it as we see it."""
    name = f"{name}-{next(_numbers)}"
    child.ask("share", name=name, nbytes=nbytes, **how)
    return peer.region(name).wait(WAIT)


@pytest.mark.parametrize("nbytes", [1, 8, 4096, 20_000, 70_001, 1 << 20])
def test_what_is_put_is_there_and_is_got_back(pair, nbytes):
    """Of any size, at any place, and nothing beside it changes."""
    child, peer, how, path = pair
    region = shared(child, peer, **how)
    data = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
    at = min(13, (1 << 20) - nbytes)
    x = region[at : at + nbytes].put(data)
    assert path == x.wait(WAIT).path

    held = bytes.fromhex(child.ask("read", name=region.name)[0])
    assert bytes(at) == held[:at]
    assert data.tobytes() == held[at : at + nbytes]
    assert not any(held[at + nbytes :])
    got = np.zeros(nbytes, np.uint8)
    region[at : at + nbytes].get(got).wait(WAIT)
    assert np.array_equal(data, got)
    assert f"{region.name!r} (N={1 << 20} uint8): {path}" in peer.explain()


def test_caches_of_other_layouts_change_over_in_one_pass(pair):
    """Other orders, block sizes and shards; partial last pages."""
    child, peer, how, _ = pair
    ours = kv_layout("vllm/flash", layers=3, blocks=9, block=4, heads=4, dim=8)
    theirs = kv_layout("sglang/mha", layers=3, blocks=6, block=8, heads=4, dim=8,
                       tp=(1, 2))  # fmt: skip
    region = shared(child, peer, "kv", theirs.part_bytes, layout=str(theirs),
                    parts=theirs.num_parts, **how)  # fmt: skip
    src = memory(ours)
    mine = peer.engine.share(src, f"mine-{next(_numbers)}", ours)
    from_, to, tokens = [8, 0, 3, 5, 1], [4, 0, 2], 18
    region[to].put(mine[from_].first(tokens)).wait(WAIT)

    parts = [
        np.frombuffer(bytes.fromhex(p), np.uint8)
        for p in child.ask("read", name=region.name)
    ]
    sent = {key(ours, w, from_): bytes(v) for w, v in elements(ours, src)}
    held = {key(theirs, w, to): bytes(v) for w, v in elements(theirs, parts)}
    held.pop(None)
    moved = {k: v for k, v in held.items() if k[0][1] < tokens}
    assert moved
    assert {k: sent[k] for k in moved} == moved
    assert not any(any(v) for k, v in held.items() if k[0][1] >= tokens)


def test_layers_are_put_one_by_one(pair):
    """Each is announced by a name of its own, in order."""
    child, peer, how, _ = pair
    layout = kv_layout("vllm/flash", layers=4, blocks=4, block=2, heads=2, dim=4)
    region = shared(child, peer, "kv", layout.part_bytes, layout=str(layout), parts=4,
                    **how)  # fmt: skip
    src = memory(layout)
    mine = peer.engine.share(src, f"mine-{next(_numbers)}", layout)
    for layer in range(4):
        region.layer(layer)[[1, 2]].put(
            mine.layer(layer)[[3, 0]], notify=b"layer%d" % layer
        )
        child.ask("notified", tag=f"layer{layer}")

    held = [
        np.frombuffer(bytes.fromhex(p), np.uint8)
        for p in child.ask("read", name=region.name)
    ]
    for a, b in zip(src, held, strict=True):
        a, b = (x.reshape(2, 4, -1) for x in (a, b))
        assert np.array_equal(a[:, [3, 0]], b[:, [1, 2]])


def test_elements_are_converted_on_their_way(pair):
    """From float32 here to bfloat16 there."""
    child, peer, how, path = pair
    region = shared(child, peer, "kv", 2000, layout="A=40 C=25 bfloat16", **how)
    values = np.arange(1000, dtype=np.float32).reshape(40, 25) * 1.37
    mine = peer.engine.share(values, f"mine-{next(_numbers)}", "A=40 C=25 float32")
    x = region.put(mine)
    x.wait(WAIT)

    assert x.path == ("stage" if path == "cross-memory" else path)
    held = np.frombuffer(
        bytes.fromhex(child.ask("read", name=region.name)[0]), np.uint16
    )
    wide = (held.astype(np.uint32) << 16).view(np.float32)
    assert np.allclose(values.reshape(-1), wide, rtol=1 / 256)


def test_elements_that_are_converted_need_not_fit_into_the_stage(pair):
    """Whoever waits for room goes on when there is some."""
    child, peer, how, _ = pair
    region = shared(child, peer, nbytes=10 << 20, layout="A=5242880 float16", **how)
    values = np.arange(5 << 20, dtype=np.float32) % 1999
    mine = peer.engine.share(values, f"mine-{next(_numbers)}", "A=5242880 float32")
    region.put(mine).wait(WAIT)
    back = np.zeros(5 << 20, np.float16)
    region.get(back).wait(WAIT)
    assert np.array_equal(values, back)


def test_many_at_once_all_arrive(pair):
    """Each is awaited; a batch ends when all have."""
    child, peer, how, _ = pair
    region = shared(child, peer, **how)
    data = np.random.default_rng(2).integers(0, 256, 1 << 20, dtype=np.uint8)
    step = 1 << 13

    async def all_of_them():
        puts = [
            region[at : at + step].put(data[at : at + step], notify=b"some")
            for at in range(0, 1 << 20, step)
        ]
        stats = await peer.engine.batch(*puts)
        return sum(one.nbytes for one in stats)

    assert 1 << 20 == asyncio.run(all_of_them())
    child.ask("notified", tag="some", count=128)
    assert data.tobytes().hex() == child.ask("read", name=region.name)[0]


def test_a_prepared_put_sends_what_is_there_when_it_is_called(pair):
    """Again and again, with its notification."""
    child, peer, how, _ = pair
    region = shared(child, peer, **how)
    data = np.zeros(4096, np.uint8)
    put = region[:4096].prepare_put(data, notify=b"again")
    for turn in range(1, 5):
        data[:] = turn
        put()
        child.ask("notified", tag="again")
        assert 4096 * turn == child.ask("sums", name=region.name)[0]


def test_what_has_ended_says_so_on_a_descriptor(pair):
    """For selectors of the caller's own; before and after."""
    child, peer, how, _ = pair
    region = shared(child, peer, nbytes=8 << 20, **how)
    x = region.put(np.ones(8 << 20, np.uint8))
    poll = select.poll()
    poll.register(x.fileno(), select.POLLIN)

    assert poll.poll(10_000)
    assert x.done()
    assert 8 << 20 == x.stats.nbytes
    assert 8 << 20 == child.ask("sums", name=region.name)[0]


def test_a_put_that_cannot_be_is_refused_by_name(pair):
    """Memory that is not there, is to be read only, or is something else."""
    child, peer, how, _ = pair
    region = shared(child, peer, **how)
    with pytest.raises(UnknownNameError, match=f"did you mean {region.name}"):
        peer[region.name + "x"]
    with pytest.raises(LayoutError, match="the array: a tensor of shape"):
        region.put(np.zeros(7, np.uint8))
    fixed = shared(child, peer, "fixed", 64, read_only=True, **how)
    with pytest.raises(CallError, match=r"'fixed-\d+' is shared to be read only"):
        fixed.put(np.zeros(64, np.uint8))
    with pytest.raises(CallError, match="one of them has to move it"):
        region.put(region)
    fixed.get(np.zeros(64, np.uint8)).wait(WAIT)


def test_a_signal_is_for_memory_on_a_gpu(pair):
    """On a CPU there are notifications; the error says so."""
    child, peer, how, _ = pair
    region = shared(child, peer, **how)
    with pytest.raises(CallError, match="notify= is for it"):
        region[:4].prepare_put(b"four", signal=region[8:16])


def test_a_change_on_the_way_is_seen_by_checksums(pair, monkeypatch):
    """Of put and get alike: the bytes that are there are summed, not those sent."""
    child, peer, how, path = pair
    region = shared(child, peer, **how)
    data = np.ones(200_000, np.uint8)
    if path == "shared memory":
        before = transfers._same

        def changed(work):
            data[77] = 5
            return before(work)

        monkeypatch.setattr(transfers, "_same", changed)
        x = region[:200_000].put(data, checksum=True)
    else:
        summed = transfers.CopyWork.summed

        def other(work, mode):
            return summed(work, mode) ^ 1

        monkeypatch.setattr(transfers.CopyWork, "summed", other)
        x = region[:200_000].put(data, checksum=True)
    with pytest.raises(ChecksumError, match=r"differ|not what was sent"):
        x.wait(WAIT)


def test_a_notification_that_does_not_come_is_a_time_out(pair):
    """Nothing is lost by it: what comes later is there for who asks then."""
    child, peer, _, _ = pair
    seen = peer.engine.notified(b"late", 2)
    with pytest.raises(TransferTimeout, match=r"notification b'late' x 2: not within"):
        seen.wait(0.05)
    for _ in range(2):
        child.ask("notify", peer=peer.engine.name, tag="late")
    seen.wait(WAIT)


@pytest.mark.parametrize(  # by the other paths the owner takes no part
    "pair", ["stage", "tcp"], indirect=True, scope="module"
)
def test_errors_of_the_other_side_come_back(pair):
    """What only the owner can see: memory that it has taken back."""
    child, peer, how, _ = pair
    region = shared(child, peer, **how)
    object.__setattr__(region, "layout", Layout("M=1048576 uint8"))
    with pytest.raises(TransferError, match=r"is no part of|not M="):
        region.put(np.zeros(1 << 20, np.uint8)).wait(WAIT)
