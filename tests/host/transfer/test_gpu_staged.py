"""Memory on a GPU that no peer maps: through pinned memory, by every carrier.

The GPU is a stand-in: see there. Real ones have tests/device/transfer.py.
"""

import itertools
import time
import uuid

import numpy as np
import pytest
from tests.host.transfer.carriers import CARRIERS
from tests.host.transfer.conftest import SECRET
from tests.pure.transfer.oracle import elements, key, memory
from tests.pure.transfer.stand_in_gpu import GpuArray, Mover

from stretto import executors
from stretto.errors import (
    CallError,
    ChecksumError,
    LayoutError,
    StaleMemory,
    TransferCancelled,
    TransferError,
)
from stretto.fabric import hop as hops
from stretto.transfer import Engine, kv_layout
from stretto.transfer.engine.peer import Peer
from stretto.transfer.stores import Files

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 20
_numbers = itertools.count()


@pytest.fixture
def gpu(monkeypatch):
    """The GPU of this process."""
    made = Mover()
    monkeypatch.setattr(executors.get("cuda"), "mover", lambda: made)
    return made


@pytest.fixture(params=["stage", *CARRIERS])
def pair(request, monkeypatch, gpu):
    """Yield two engines in this process that take each other for other processes."""
    path = request.param
    if path in CARRIERS and (why := hops.get(path).missing()):
        pytest.skip(why)
    how = {"secret": SECRET, "job": uuid.uuid4().hex}
    if path in CARRIERS:
        how["hop"] = path
    monkeypatch.setattr(Peer, "is_self", property(lambda _: False))
    there = Engine("there", listen="127.0.0.1:0", **how)
    here = Engine("here", **how)
    where = there.address if path in CARRIERS else "there"
    peer = here.connect(where).wait(WAIT)
    yield here, there, peer, path
    here.close()
    there.close()
    assert not gpu.queue
    until = time.monotonic() + 5
    while gpu.open_moves and time.monotonic() < until:
        time.sleep(0.01)  # a thread sees off what was taken back
    assert not gpu.open_moves
    assert not gpu.pinned
    assert all(lane.closed for lane in gpu.lanes)


def shared(there, peer, tensor, layout=None):
    """Share memory there, and return it as it is seen from here."""
    name = f"m{next(_numbers)}"
    there.share(tensor, name, layout)
    return peer.region(name).wait(WAIT)


def filled(gpu, shape, dtype=np.uint8, seed=1):
    """Return memory of the GPU with something in it."""
    made = gpu.empty(shape, dtype)
    raw = made.array.reshape(-1).view(np.uint8)
    raw[:] = np.random.default_rng(seed).integers(0, 120, raw.size, dtype=np.uint8)
    return made


@pytest.mark.parametrize("nbytes", [1, 5000, 70_001, 5 << 20])
@pytest.mark.parametrize("sides", [("gpu", "cpu"), ("cpu", "gpu"), ("gpu", "gpu")])
def test_bytes_go_from_a_gpu_and_to_one(pair, gpu, nbytes, sides):
    """Put and got back, of any size, in parts."""
    _, there, peer, path = pair
    from_, to = sides
    if path == "stage" and from_ == "cpu":
        pytest.skip("a GPU here reaches it")
    src = filled(gpu, nbytes)
    dst = gpu.empty(nbytes, np.uint8)
    source = src if from_ == "gpu" else src.array
    region = shared(there, peer, dst if to == "gpu" else dst.array)
    x = region.put(source, notify=b"there")
    assert path == x.wait(WAIT).path
    there.notified(b"there").wait(WAIT)
    assert np.array_equal(src.array, dst.array)

    back = gpu.empty(nbytes, np.uint8)
    y = region.get(back if from_ == "gpu" else back.array, checksum=True)
    y.wait(WAIT)
    assert np.array_equal(src.array, back.array)
    if from_ == "gpu":
        assert 5 in gpu.lanes[0].followed
        assert "pinned memory" in peer.explain()


def test_caches_on_gpus_change_over(pair, gpu):
    """Other orders, block sizes and shards, in one pass each way."""
    here, there, peer, _ = pair
    ours = kv_layout("vllm/flash", layers=3, blocks=9, block=4, heads=4, dim=8)
    theirs = kv_layout("sglang/mha", layers=3, blocks=6, block=8, heads=4, dim=8,
                       tp=(1, 2))  # fmt: skip
    src = memory(ours)
    on_gpu = [gpu.empty(t.shape, t.dtype) for t in src]
    for made, tensor in zip(on_gpu, src, strict=True):
        made.array[:] = tensor
    dst = [gpu.empty(theirs.part_bytes, np.uint8) for _ in range(theirs.num_parts)]
    mine = here.share(on_gpu, f"mine{next(_numbers)}", ours)
    region = shared(there, peer, dst, theirs)
    from_, to, tokens = [8, 0, 3, 5, 1], [4, 0, 2], 18
    region[to].put(mine[from_].first(tokens), checksum=True).wait(WAIT)

    parts = [t.array for t in dst]
    sent = {key(ours, w, from_): bytes(v) for w, v in elements(ours, src)}
    held = {key(theirs, w, to): bytes(v) for w, v in elements(theirs, parts)}
    held.pop(None)
    moved = {k: v for k, v in held.items() if k[0][1] < tokens}
    assert moved
    assert {k: sent[k] for k in moved} == moved


def test_strided_tensors_on_a_gpu_need_no_copy(pair, gpu):
    """A part of a tensor, a transposed one; ones that overlap are refused."""
    here, there, peer, _ = pair
    whole = filled(gpu, (40, 64), np.float32)
    part = GpuArray(whole.array[4:30, 8:40])
    region = shared(there, peer, np.zeros((26, 32), np.float32), "A=26 C=32 float32")
    held = there.shelf.regions[region.name].holds
    region.put(part).wait(WAIT)
    assert np.array_equal(part.array, held)

    turned = GpuArray(filled(gpu, (32, 26), np.float32, seed=2).array.T)
    mine = here.share(turned, f"mine{next(_numbers)}", "A=26 C=32 float32")
    region.get(mine).wait(WAIT)
    assert np.array_equal(held, turned.array)
    same = np.broadcast_to(whole.array[0, 0], (26, 32))
    with pytest.raises(LayoutError, match="overlap"):
        region.get(GpuArray(same))


def test_elements_are_converted_by_the_gpu_that_stores_them(pair, gpu):
    """From float32 on one to float16 on the other."""
    here, there, peer, _ = pair
    src, dst = gpu.empty((30, 25), np.float32), gpu.empty((30, 25), np.float16)
    src.array[:] = np.arange(750).reshape(30, 25)
    region = shared(there, peer, dst, "A=30 C=25 float16")
    region.put(here.share(src, f"mine{next(_numbers)}", "A=30 C=25 float32")).wait(WAIT)
    assert np.array_equal(src.array.astype(np.float16), dst.array)


def test_many_at_once_share_the_pinned_memory(pair, gpu):
    """More parts than there is room for, both ways."""
    here, there, peer, _ = pair
    src, dst = filled(gpu, 6 << 20), gpu.empty(6 << 20, np.uint8)
    back = gpu.empty(6 << 20, np.uint8)
    region = shared(there, peer, dst)
    step = 768 << 10
    mine = here.share(src, f"mine{next(_numbers)}")
    again = here.share(back, f"mine{next(_numbers)}")
    ranges = [slice(at, at + step) for at in range(0, 6 << 20, step)]
    here.batch(*(region[r].put(mine[r]) for r in ranges)).wait(WAIT)
    assert np.array_equal(src.array, dst.array)
    here.batch(*(region[r].get(again[r]) for r in ranges)).wait(WAIT)
    assert np.array_equal(src.array, back.array)


def test_a_prepared_put_takes_a_stream_each_time(pair, gpu):
    """It is done when it returns; in a graph it cannot be."""
    here, there, peer, path = pair
    src, dst = filled(gpu, 9000), gpu.empty(9000, np.uint8)
    region = shared(there, peer, dst)
    put = region.view.prepare_put(here.share(src, f"mine{next(_numbers)}"))
    assert path == put.by
    for turn in range(3):
        src.array[:] = turn
        put(11)
        assert (dst.array == turn).all()
    assert 11 in gpu.lanes[0].followed
    with pytest.raises(CallError, match="a graph is captured"):
        put(99)


def test_a_gpu_that_fails_is_named_and_the_connection_lives(pair, gpu):
    """On either side."""
    here, there, peer, path = pair
    src, dst = filled(gpu, 1 << 20), gpu.empty(1 << 20, np.uint8)
    region, plain = shared(there, peer, dst), shared(there, peer, np.zeros(8, np.uint8))
    mine = here.share(src, f"mine{next(_numbers)}")
    region.put(mine).wait(WAIT)
    gpu.fails = True
    x = region.put(mine)
    with pytest.raises(TransferError, match="LAUNCH_FAILED"):
        x.wait(WAIT)
    y = region.get(here.share(np.zeros(1 << 20, np.uint8), f"mine{next(_numbers)}")
                   if path != "stage" else mine)  # fmt: skip
    with pytest.raises(TransferError, match=r"LAUNCH_FAILED|refuses"):
        y.wait(WAIT)
    gpu.fails = False
    plain.put(np.arange(8, dtype=np.uint8)).wait(WAIT)
    region.put(mine).wait(WAIT)
    assert np.array_equal(src.array, dst.array)


def test_nothing_is_stored_on_a_gpu_under_a_lease_that_has_ended(pair, gpu):
    """What the GPU is at is waited for."""
    here, there, peer, _ = pair
    src, dst = filled(gpu, 4 << 20), gpu.empty(4 << 20, np.uint8)
    region = shared(there, peer, dst)
    mine = here.share(src, f"mine{next(_numbers)}")
    lease = there.lease()
    x = region.put(mine, lease=lease.token)
    time.sleep(0.003)
    lease.end(5.0)
    before = dst.array.copy()
    try:
        x.wait(WAIT)
    except StaleMemory:
        assert not np.array_equal(src.array, dst.array)
    assert np.array_equal(before, dst.array)
    with pytest.raises(StaleMemory):
        region.put(mine, lease=lease.token).wait(WAIT)


def test_what_is_taken_back_lands_nowhere_afterwards(pair, gpu):
    """A get to our GPU, at any moment."""
    here, there, peer, _ = pair
    src = filled(gpu, 8 << 20)
    region = shared(there, peer, src)
    for turn in range(4):
        got = gpu.empty(8 << 20, np.uint8)
        x = region.get(here.share(got, f"mine{next(_numbers)}"))
        time.sleep(0.002 * turn)
        cancelled = x.cancel()
        before = got.array.copy()
        if cancelled:
            with pytest.raises(TransferCancelled):
                x.wait(WAIT)
        time.sleep(0.02)
        assert np.array_equal(before, got.array)


def test_a_change_on_the_way_is_found_by_sums(pair, gpu, monkeypatch):
    """Of what lies on the GPU, not of what was sent."""
    from stretto.transfer.ways import gpu_stage

    here, there, peer, _ = pair
    src, dst = filled(gpu, 300_000), gpu.empty(300_000, np.uint8)
    region = shared(there, peer, dst)
    land = gpu_stage.GpuReceiving._land

    def spoilt(self):
        land(self)
        dst.array[1234] ^= 1

    monkeypatch.setattr(gpu_stage.GpuReceiving, "_land", spoilt)
    x = region.put(here.share(src, f"mine{next(_numbers)}"), checksum=True)
    with pytest.raises(ChecksumError, match="not what was sent"):
        x.wait(WAIT)


def test_a_gpu_is_saved_to_files_and_comes_back(gpu, tmp_path):
    """In another layout, with sums."""
    store = Files(tmp_path / "kept")
    with Engine(f"here-{uuid.uuid4().hex[:8]}") as engine:
        src, back = (
            filled(gpu, (6, 8, 64), np.float32),
            gpu.empty((6, 8, 64), np.float32),
        )
        pages = "B=6 T=8 D=64 float32"
        kept = engine.stored(store, "kv", "B=6 D=64 T=8 float32")
        kept[[5, 1]].put(engine.share(src, "src", pages)[[0, 4]], checksum=True).wait(9)
        kept[[1]].get(engine.share(back, "back", pages)[[2]], checksum=True).wait(9)
        assert np.array_equal(src.array[4], back.array[2])
    store.close()
    assert not gpu.pinned


@pytest.mark.parametrize("sides", [("cpu", "gpu"), ("gpu", "cpu"), ("gpu", "gpu")])
def test_many_blocks_go_in_many_parts(pair, gpu, sides):
    """Far more than the stage and the pinned memory hold, in pieces of some KB."""
    here, there, peer, path = pair
    from_, to = sides
    if path == "stage" and from_ == "cpu":
        pytest.skip("a GPU here reaches it")
    layout = "B=1536 X=16384 uint8"
    src, dst = filled(gpu, 24 << 20), gpu.empty(24 << 20, np.uint8)
    ours = src if from_ == "gpu" else src.array
    mine = here.share(ours, f"mine{next(_numbers)}", layout)
    region = shared(there, peer, dst if to == "gpu" else dst.array, layout)
    order = np.random.default_rng(4).permutation(1536)
    for _ in range(3):
        region[order].put(mine.view).wait(WAIT)
    blocks = src.array.reshape(1536, -1)
    assert np.array_equal(blocks, dst.array.reshape(1536, -1)[order])
    src.array[:] = 0
    for _ in range(3):
        region[order].get(mine.view).wait(WAIT)
    assert np.array_equal(blocks, dst.array.reshape(1536, -1)[order])
