"""Both sides of a transfer are of one size, or it is refused with both shapes."""

import re
import uuid

import numpy as np
import pytest
from tests.pure.transfer.stand_in_gpu import GpuArray, Mover

from stretto import executors
from stretto.errors import CallError, LayoutError
from stretto.transfer import Engine, Layout
from stretto.transfer.stores import Files, load, save

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]
WAIT = 20
VERBS = ("put", "get", "prepare_put", "prepare_get")
_ALL = "A=6 C=10 float32"
KV = "L=3 | KV=2 B=8 T=4 H=2 float16"


@pytest.fixture(params=["near", "tcp"], scope="module")
def pair(request):
    """Yield two engines, and the first's peer for the second."""
    how = {"job": uuid.uuid4().hex, "secret": b"s" * 32}
    with (
        Engine("there", listen="127.0.0.1:0", **how) as there,
        Engine("here", **how) as here,
    ):
        where = there.address if request.param == "tcp" else "there"
        yield here, there, here.connect(where).wait(WAIT)


@pytest.fixture
def shared(pair):
    """Return what shares memory there under a new name, and gives our view of it."""
    _, there, peer = pair

    def share(given, layout=None):
        name = uuid.uuid4().hex
        there.share(given, name, layout)
        return peer.region(name).wait(WAIT)

    return share


def do(view, verb, other):
    """Do a transfer, prepared or not."""
    made = getattr(getattr(view, "view", view), verb)(other)
    return made() if verb.startswith("prepare") else made.wait(WAIT)


def refused(view, verb, other, *said):
    """Have a transfer be refused, with words that name both sides."""
    with pytest.raises((CallError, LayoutError)) as e:
        do(view, verb, other)
    for text in said:
        assert text in str(e.value)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("count", [0, 1, 9, 11, 20, 100])
def test_an_array_has_as_many_elements_as_the_view(shared, verb, count):
    """Neither a longer one is cut, nor is a shorter one taken for its first part."""
    held = np.arange(10, dtype=np.float32)
    region = shared(held)
    ours = np.full(count, 7, np.float32)
    refused(region, verb, ours, f"({count},)", "(10,)")
    refused(region[2:10], verb, ours, f"({count},)", "(8,)")
    assert np.array_equal(np.arange(10), held)
    assert (ours == 7).all()


@pytest.mark.parametrize("verb", VERBS)
def test_a_slice_is_of_what_is_there(shared, verb):
    """As many as were named, or none: it is not cut at the end of the memory."""
    held = np.zeros(10, np.float32)
    region = shared(held)
    for part in (slice(8, 100), slice(-11, 3), slice(11, 12)):
        with pytest.raises(CallError, match=r"of 10 elements; want a part"):
            do(region[part], verb, np.ones(2, np.float32))
    pages = shared(np.zeros((4, 8), np.uint8), "B=4 X=8 uint8")
    with pytest.raises(CallError, match=r"\[2:9\] of 4 pages; want a part"):
        do(pages[2:9], verb, np.ones((2, 8), np.uint8))
    do(region[-2:], verb, np.ones(2, np.float32))
    assert ("put" in verb) == bool(held[-1])


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("pick", "shape"),
    [
        (lambda region: region, (6, 10)),
        (lambda region: region.only(A=(1, 4)), (3, 10)),
        (lambda region: region.only(A=(1, 4)).only(A=(2, 6), C=(0, 5)), (2, 5)),
    ],
)
def test_an_array_has_the_shape_of_what_is_picked(shared, verb, pick, shape):
    """Not that of all, of which the rest would be left out."""
    held = np.arange(60, dtype=np.float32).reshape(6, 10)
    region = shared(held, _ALL)
    for wrong in {(6, 10), (3, 10), (2, 5), (1, 10), (7, 10)} - {shape}:
        refused(pick(region), verb, np.ones(wrong, np.float32), str(wrong), str(shape))
    ours = np.zeros(shape, np.float32)
    do(pick(region), verb, ours)
    if verb.endswith("put"):
        assert 60 - ours.size == np.count_nonzero(held) + (shape != (6, 10))
    else:
        assert ours.all() or ours.size == 60


@pytest.mark.parametrize("verb", VERBS)
def test_an_array_has_as_many_pages_as_are_named(shared, verb):
    """Of one layer or all, and where a part of the last page is meant."""
    region = shared([np.zeros(256, np.uint8) for _ in range(3)], KV)
    all_of_it = [np.ones((2, 8, 4, 2), np.float16) for _ in range(3)]
    named = [np.ones((2, 3, 4, 2), np.float16) for _ in range(3)]
    refused(region[[5, 0, 2]], verb, all_of_it, "(2, 8, 4, 2)", "(2, 3, 4, 2)")
    refused(region[[5, 0]], verb, named, "(2, 3, 4, 2)", "(2, 2, 4, 2)")
    refused(region, verb, named, "(2, 3, 4, 2)", "(2, 8, 4, 2)")
    refused(region.layer(1)[[5, 0, 2]], verb, named, "3 tensors", "L=3[1:2]")
    refused(region[[5, 0, 2]], verb, named[:2], "2 tensors")
    do(region[[5, 0, 2]], verb, named)
    do(region.layer(1)[[5, 0, 2]], verb, named[:1])
    do(region[[5, 0, 2]].first(9), verb, named)
    with pytest.raises(CallError, match="tokens=13; the pages hold 12 and 12"):
        do(region[[5, 0, 2]].first(13), verb, named)


@pytest.mark.parametrize("verb", VERBS)
def test_views_of_both_sides_are_of_one_size(pair, shared, verb):
    """Lists of pages, sizes of blocks, ranges, tokens and lengths; all are named."""
    here = pair[0]
    region = shared([np.zeros(256, np.uint8) for _ in range(3)], KV)
    name = uuid.uuid4().hex
    ours = here.share(
        [np.zeros(512, np.uint8) for _ in range(3)], name, KV.replace("T=4", "T=8")
    )
    refused(region, verb, ours, "pass tokens= or pages of as many")
    refused(region[[1, 2, 3]], verb, ours[[1, 2]], "pages of", "pass tokens=")
    refused(region[[1, 2]].first(5), verb, ours[[1]].first(6), "first 5", "first 6")
    refused(
        region.layer(1)[[1, 2]], verb, ours.layer(2)[[1]], "('L', 1, 2)", "('L', 2, 3)"
    )
    refused(region.only(H=(0, 2)).only(H=(2, 3)), verb, ours, "nothing is left")
    do(region[[1, 2]], verb, ours[[1]])
    do(region.layer(1)[[1, 2]], verb, ours[[1]])  # layouts say what is meant
    do(region[[]], verb, ours[[]])
    flat, more = (
        shared(np.zeros(10, np.int32)),
        here.share(np.zeros(20, np.int32), name + "f"),
    )
    refused(flat, verb, more, "N=10 ", "N=20 ")
    refused(flat[:5], verb, more[:6], "N=5", "N=6")
    do(flat[:5], verb, more[7:12])
    with pytest.raises(CallError, match="no pages of tokens"):
        flat.view.first(0)


@pytest.mark.parametrize("verb", VERBS)
def test_elements_are_of_one_type(shared, verb):
    """As many bytes are not enough; raw bytes, and the bits of a bfloat16, are."""
    region = shared(np.zeros(10, np.float32))
    for other in (np.int32, np.uint32, np.float64, np.float16):
        refused(region, verb, np.ones(10, other), np.dtype(other).name, "float32")
    do(region, verb, bytearray(40))
    for count in (39, 41, 80):
        refused(region, verb, bytearray(count), f"({count},)", "(10,)")
    half = shared(np.zeros(10, np.uint16), "N=10 bfloat16")
    do(half, verb, np.ones(10, np.uint16))
    refused(half, verb, np.ones(10, np.float16), "float16", "bfloat16")


def test_memory_that_is_in_use_does_not_move(pair, shared):
    """A bytearray that grew would leave what is prepared with its old place."""
    here, region = pair[0], shared(np.zeros(10, np.uint8))
    ours, kept = bytearray(b"0123456789"), bytearray(10)
    put = region.view.prepare_put(ours)
    here.share(kept, uuid.uuid4().hex)
    for one in (ours, kept):
        with pytest.raises(BufferError):
            one.extend(bytes(1 << 20))
    put()


@pytest.mark.parametrize("verb", VERBS)
def test_a_store_takes_and_gives_as_much_as_it_is_asked_for(tmp_path, verb):
    """Its volumes are views as others."""
    store = Files(tmp_path)
    with Engine(f"here-{uuid.uuid4().hex[:8]}") as here:
        shelf = here.stored(store, "shelf", "B=8 X=16 uint8")
        refused(shelf[[1, 2]], verb, np.ones((8, 16), np.uint8), "(8, 16)", "(2, 16)")
        refused(shelf, verb, np.ones(129, np.uint8), "(129,)", "(8, 16)")
        for name in ("put", verb):
            do(shelf[[1, 2]], name, np.ones((2, 16), np.uint8))
    store.close()


@pytest.mark.parametrize("count", [9, 11, 100])
def test_a_checkpoint_is_as_large_as_its_tensors(tmp_path, count):
    """Saved and loaded: a longer target would keep its tail."""
    store = Files(tmp_path)
    layout = {"w": Layout("N=10 float32")}
    said = rf"'w': .*{re.escape(f'({count},)')}.*\(10,\)"
    with Engine(f"here-{uuid.uuid4().hex[:8]}") as here:
        save(here, store, "step", {"w": np.arange(10, dtype=np.float32)}, layout)
        with pytest.raises(LayoutError, match=said):
            save(here, store, "other", {"w": np.zeros(count, np.float32)}, layout)
        with pytest.raises(LayoutError, match=said):
            load(here, store, "step", {"w": np.zeros(count, np.float32)}, layout)
        got = np.zeros(10, np.float32)
        assert 40 == load(here, store, "step", {"w": got}, layout)
    assert np.array_equal(np.arange(10), got)
    store.close()


@pytest.mark.parametrize("verb", VERBS)
def test_a_tensor_on_a_gpu_has_as_many_elements(pair, shared, verb, monkeypatch):
    """Whatever way its bytes would go."""
    mover = Mover()
    monkeypatch.setattr(executors.get("cuda"), "mover", lambda: mover)
    region = shared(np.zeros(10, np.float32))
    for count in (1, 9, 20):
        refused(
            region, verb, GpuArray(np.ones(count, np.float32)), f"({count},)", "(10,)"
        )
