"""Files and objects: what was put is got back, in any layout, and faults have names."""

import os
import uuid
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pure.transfer.object_server import NAME, REGION, SECRET, ObjectServer
from tests.pure.transfer.oracle import elements, key, memory

from stretto.errors import (
    CallError,
    ChecksumError,
    LayoutError,
    TransferCancelled,
    TransferError,
    TransferTimeout,
)
from stretto.transfer import Engine, Layout, kv_layout
from stretto.transfer.stores import Files, Missing, Objects, StoreError, load, save
from stretto.transfer.stores import objects as module
from stretto.transfer.stores.signing import Key, signed

WAIT = 20
PAGES = "B=12 KV=2 T=4 D=32 uint8"


@pytest.fixture
def engine():
    """Yield an engine."""
    with Engine(f"stores-{uuid.uuid4().hex[:8]}") as made:
        yield made


@pytest.fixture
def server(monkeypatch):
    """Yield an object store that does not let anybody wait long."""
    monkeypatch.setattr(module, "_PAUSE_S", 0.001)
    with ObjectServer() as made:
        yield made


def objects(server, **how):
    """Return our end of it."""
    given = {"key": NAME, "secret": SECRET, "region": REGION, "timeout_s": 5.0, **how}
    return Objects(server.url, **given)


@pytest.fixture(params=["files", "cached files", "objects"])
def store(request, tmp_path):
    """Yield a store of each kind."""
    if request.param == "objects":
        made = objects(request.getfixturevalue("server"))
    else:
        made = Files(tmp_path / "kept", direct=request.param == "files")
    yield made
    made.close()


def test_a_cache_is_kept_in_another_layout_and_comes_back(engine, store):
    """Other orders, page sizes and shards, through a store of odd pieces."""
    ours = kv_layout("vllm/flash", layers=2, blocks=9, block=4, heads=4, dim=8)
    theirs = kv_layout("sglang/mha", layers=2, blocks=6, block=8, heads=4, dim=8,
                       tp=(1, 2))  # fmt: skip
    src, back = memory(ours), memory(ours)
    for tensor in back:
        tensor[:] = 0
    mine, kept = engine.share(src, "mine", ours), engine.stored(store, "kv", theirs,
                                                              piece=202)  # fmt: skip
    again = engine.share(back, "back", ours)
    from_, to, tokens = [8, 0, 3, 5, 1], [4, 0, 2], 18
    x = kept[to].put(mine[from_].first(tokens))
    assert store.kind in x.wait(WAIT).path
    kept[to].get(again[[1, 2, 3, 4, 5]].first(tokens)).wait(WAIT)

    sent = {key(ours, w, from_): bytes(v) for w, v in elements(ours, src)}
    held = {key(ours, w, [1, 2, 3, 4, 5]): bytes(v) for w, v in elements(ours, back)}
    sent.pop(None, None)
    held.pop(None, None)
    moved = {k for k in sent if k[0][1] < tokens and any(held[k])}
    assert {k: sent[k] for k in moved} == {k: held[k] for k in moved}
    heads = {k for k in sent if k[0][1] < tokens and any(sent[k])}
    assert len(moved) == len(heads) // 2  # the shard has two heads of four


def test_sharded_tensors_are_saved_by_four_and_loaded_by_three(engine, store):
    """Rows are saved, columns and types are loaded."""
    whole = np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32)
    bias = np.arange(96, dtype=np.float32)
    for rank in range(4):
        rows = slice(rank * 16, rank * 16 + 16)
        mine = {"w": np.ascontiguousarray(whole[rows]), "b": bias.copy()}
        layouts = {"w": f"A=64[{rows.start}:{rows.stop}] C=96 float32",
                   "b": "C=96 float32"}  # fmt: skip
        if rank:
            del mine["b"]
        save(engine, store, "step", mine, layouts, shard=f"rank-{rank}")
    for rank in range(3):
        at = slice(rank * 32, rank * 32 + 32)
        w, b = np.zeros((64, 32), np.float16), np.zeros(32, np.float32)
        total = load(
            engine, store, "step", {"w": w, "b": b},
            {"w": f"A=64 C=96[{at.start}:{at.stop}] float16",
             "b": f"C=96[{at.start}:{at.stop}] float32"},
        )  # fmt: skip
        assert 64 * 32 * 2 + 32 * 4 == total
        assert np.array_equal(whole[:, at].astype(np.float16), w)
        assert np.array_equal(bias[at], b)
    with pytest.raises(Missing, match="no shard of step/v"):
        load(engine, store, "step", {"v": np.zeros(1)}, {"v": "A=1 float64"})
    with pytest.raises(LayoutError, match="differs in size"):
        load(engine, store, "step", {"w": np.zeros((8, 96), np.float32)},
             {"w": "A=8 C=96 float32"})  # fmt: skip


def test_what_is_not_put_stays_what_it_was(engine, store):
    """Parts of pieces, one after the other; what nobody stored is zeros."""
    rng = np.random.default_rng(3)
    want = np.zeros(5000, np.uint8)
    kept = engine.stored(store, "bytes", "N=5000 uint8", piece=700)
    for _ in range(12):
        at, n = int(rng.integers(0, 4000)), int(rng.integers(1, 1000))
        want[at : at + n] = rng.integers(1, 256, n, dtype=np.uint8)
        kept[at : at + n].put(want[at : at + n].copy()).wait(WAIT)
    some = np.flatnonzero(want)
    got = np.ones(some[-1] + 1 - some[0], np.uint8)
    lacking = {p for p in range(8) if not want[p * 700 : p * 700 + 700].any()}
    if store.takes_parts or not lacking:
        kept[int(some[0]) : int(some[-1]) + 1].get(got).wait(WAIT)
        assert np.array_equal(want[some[0] : some[-1] + 1], got)


def test_many_puts_of_parts_of_one_piece_at_once_are_all_there(engine, store):
    """Each reads, changes and stores the same piece where parts are not taken."""
    kept = engine.stored(store, "one", "N=4096 uint8", piece=4096)
    data = np.random.default_rng(4).integers(0, 256, 4096, dtype=np.uint8)
    puts = [kept[at : at + 64].put(data[at : at + 64]) for at in range(0, 4096, 64)]
    for x in puts:
        x.wait(WAIT)
    got = np.zeros(4096, np.uint8)
    kept.get(got).wait(WAIT)
    assert np.array_equal(data, got)


def test_a_changed_byte_is_found_by_its_sum_and_names_the_page(engine, store, request):
    """Others of the same transfer are there."""
    ours = np.random.default_rng(5).integers(0, 256, (12, 2, 4, 32), dtype=np.uint8)
    mine, kept = engine.share(ours, "mine", PAGES), engine.stored(store, "kv", PAGES,
                                                                piece=256)  # fmt: skip
    kept[[3, 5, 7]].put(mine[[0, 1, 2]], checksum=True).wait(WAIT)
    if store.kind == "file":
        path = store._folder / "kv" / "0.bytes"
        store.close()
        raw = bytearray(path.read_bytes())
        raw[5 * 256 + 9] ^= 1
        path.write_bytes(raw)
    else:
        server = request.getfixturevalue("server")
        data, about = server.objects["some/prefix/kv/0/00000005"]
        server.objects["some/prefix/kv/0/00000005"] = b"!" + data[1:], about
    back = np.zeros_like(ours)
    there = engine.share(back, "back", PAGES)
    x = kept[[3, 5, 7]].get(there[[8, 9, 10]], checksum=True)
    with pytest.raises(ChecksumError, match=r"1 of 3 pieces, kv/0/5: .*not what was"):
        x.wait(WAIT)
    assert (9,) == x.error.blocks_failed
    assert 512 == x.error.bytes_done
    assert np.array_equal(ours[[0, 2]], back[[8, 10]])
    assert not back[9].any()
    kept[[4]].put(mine[[3]]).wait(WAIT)
    y = kept[[4]].get(there[[0]], checksum=True)
    with pytest.raises(ChecksumError, match="put without checksum"):
        y.wait(WAIT)


def test_what_fails_for_a_while_is_asked_again_and_what_goes_on_is_named(
    engine, server
):
    """By block: the others arrive, and the error says which did not."""
    store = objects(server)
    ours = np.random.default_rng(6).integers(0, 256, (12, 2, 4, 32), dtype=np.uint8)
    mine, kept = engine.share(ours, "mine", PAGES), engine.stored(store, "kv", PAGES,
                                                                piece=256)  # fmt: skip
    hiccups = iter([503, "hang up", 500, None, 429])
    server.faults = [lambda method, path: next(hiccups, None)]
    kept[[0, 1, 2]].put(mine[[0, 1, 2]]).wait(WAIT)
    server.faults = [lambda method, path: 500 if path.endswith("00000004") else None]
    x = kept[[3, 4, 5]].put(mine[[3, 9, 5]])
    with pytest.raises(TransferError, match=r"1 of 3 pieces, kv/0/4: .*500.*4 times"):
        x.wait(WAIT)
    assert (9,) == x.error.blocks_failed
    assert x.error.peer == server.url
    server.faults = [
        lambda method, path: "cut short" if path.endswith("00000001") else None
    ]
    back = np.zeros_like(ours)
    there = engine.share(back, "back", PAGES)
    y = kept[[0, 1, 2]].get(there[[0, 1, 2]])
    with pytest.raises(TransferError, match=r"kv/0/1: .*128 bytes of 256|IncompleteRe"):
        y.wait(WAIT)
    assert (1,) == y.error.blocks_failed
    assert np.array_equal(ours[[0, 2]], back[[0, 2]])
    server.faults = []
    z = kept[[7, 0]].get(there[[7, 8]])
    with pytest.raises(TransferError, match="has no kv/0/00000007"):
        z.wait(WAIT)
    assert (7,) == z.error.blocks_failed
    store.close()


def test_a_key_that_is_wrong_is_refused_and_said(engine, server):
    """And what was asked for is not asked for again and again."""
    store = objects(server, secret="wrong")
    with pytest.raises(StoreError, match=r"403 .*SignatureDoesNotMatch"):
        engine.stored(store, "kv", PAGES)
    assert 1 == len(server.seen)
    other = Objects(server.url.replace("/bucket", "/other"), key=NAME, secret=SECRET,
                    region=REGION)  # fmt: skip
    with pytest.raises(StoreError, match="NoSuchBucket"):
        engine.stored(other, "kv", PAGES)
    with pytest.raises(CallError, match="names no bucket"):
        Objects("http://host", key="a", secret="b")
    with pytest.raises(CallError, match="want https"):
        Objects("host/bucket", key="a", secret="b")
    right = objects(server)
    with pytest.raises(Missing, match="has no"):
        engine.stored(right, "never")
    for one in (store, other, right):
        one.close()


def test_a_key_is_asked_for_by_name(monkeypatch):
    """Of the environment, or passed."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CallError, match="set AWS_ACCESS_KEY_ID"):
        Objects("http://host/bucket")


def test_a_signature_is_that_of_the_documentation():
    """The GET of a range in AWS's own examples of Signature Version 4."""
    key = Key(name="AKIAIOSFODNN7EXAMPLE",
              secret="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")  # fmt: skip
    when = datetime(2013, 5, 24, tzinfo=UTC)
    _, headers = signed(key, "GET", "examplebucket.s3.amazonaws.com", "/test.txt", {},
                        {"range": "bytes=0-9"}, now=when)  # fmt: skip
    want = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    assert headers["authorization"].endswith(f"Signature={want}")
    target, headers = signed(
        key, "GET", "examplebucket.s3.amazonaws.com", "/",
        {"max-keys": "2", "prefix": "J"}, {}, now=when,
    )  # fmt: skip
    want = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    assert headers["authorization"].endswith(f"Signature={want}")
    assert "/?max-keys=2&prefix=J" == target


def test_a_volume_of_another_layout_is_refused_with_both(engine, store):
    """And names that are none."""
    engine.stored(store, "kv", PAGES)
    with pytest.raises(CallError, match=r"has 'kv' as B=12 KV=2 .*; not B=13"):
        engine.stored(store, "kv", "B=13 KV=2 T=4 D=32 uint8")
    for name in ("", "/kv", "../kv", "a//b"):
        with pytest.raises(CallError, match="want a name"):
            engine.stored(store, name, PAGES)
    store.put_text("odd", b"[1]")
    with pytest.raises(StoreError, match="'odd' is no volume"):
        engine.stored(store, "odd")
    assert ["kv", "odd"] == list(store.names(""))
    store.remove("kv")
    store.remove("kv")
    assert ["odd"] == list(store.names(""))
    kept = engine.stored(store, "kv", PAGES)
    with pytest.raises(CallError, match="one of them has to be memory of this engine"):
        kept.put(kept)
    with pytest.raises(CallError, match="takes no notify="):
        kept.put(np.zeros((12, 2, 4, 32), np.uint8), notify=b"x")


def test_what_is_taken_back_or_late_leaves_memory_alone(engine, server):
    """However slow the store is."""
    import time

    store = objects(server)
    kept = engine.stored(store, "bytes", "N=4096 uint8", piece=256)
    kept.put(np.full(4096, 7, np.uint8)).wait(WAIT)
    server.faults = [lambda method, path: time.sleep(0.05)]
    got = np.zeros(4096, np.uint8)
    x = kept.get(got)
    assert x.cancel()
    before = got.copy()
    with pytest.raises(TransferCancelled):
        x.wait(WAIT)
    y = kept.get(np.zeros(4096, np.uint8), deadline=0.02)
    with pytest.raises(TransferTimeout, match="before its deadline"):
        y.wait(WAIT)
    time.sleep(0.3)
    assert np.array_equal(before, got)
    again = kept.view.prepare_get(got)
    server.faults = []
    again()
    assert (got == 7).all()
    store.close()


@settings(max_examples=25)
@given(
    st.permutations(["A", "C", "E"]), st.permutations(["A", "C", "E"]),
    st.integers(1, 40), st.booleans(),
)  # fmt: skip
def test_any_layout_goes_to_any_other_through_pieces_of_any_size(a, b, piece, converts):
    """As if it had been transposed in memory."""
    sizes = {"A": 3, "C": 5, "E": 4}
    dtype = "float16" if converts else "float32"
    source = Layout(" ".join(f"{n}={sizes[n]}" for n in a) + " float32")
    middle = Layout(" ".join(f"{n}={sizes[n]}" for n in b) + f" {dtype}")
    folder = f"/tmp/stretto-stores-{os.getpid()}-{uuid.uuid4().hex}"
    store = Files(folder)
    with Engine(f"any-{uuid.uuid4().hex[:8]}") as engine:
        data = np.arange(60, dtype=np.float32).reshape([sizes[n] for n in a])
        kept = engine.stored(store, "x", middle, piece=piece * middle.itemsize)
        kept.put(engine.share(data, "data", source)).wait(WAIT)
        raw = np.fromfile(f"{folder}/x/0.bytes", middle.storage)
        want = data.transpose([list(a).index(n) for n in b]).reshape(-1)
        assert np.array_equal(want, raw.astype(np.float32))
    store.remove("x")
    store.close()
    Path(folder).rmdir()
