"""What a transfer, an engine or a notification is asked for: that, or words."""

import random
import tracemalloc
import uuid

import numpy as np
import pytest

from stretto.errors import CallError, StrettoError
from stretto.fabric.wire import MEMBER_LIMIT
from stretto.transfer import Engine
from stretto.transfer.ways.request import pack_request

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]
WAIT = 20
PAGES = 12


@pytest.fixture(name="pair", scope="module")
def _pair():
    """Yield an engine with memory, and a peer that stands for it by TCP."""
    how = {"job": uuid.uuid4().hex, "secret": b"s" * 32}
    with (
        Engine("there", listen="127.0.0.1:0", **how) as there,
        Engine("here", **how) as here,
    ):
        pages = np.arange(4 * PAGES, dtype=np.float32).reshape(PAGES, 4)
        there.share(pages, "pages", f"B={PAGES} X=4 float32")
        there.share(pages.reshape(-1), "plain")
        yield there, here.connect(there.address).wait(WAIT), pages


def drawn(rng, count):
    """Return what names some of so many pages: a number, a list or a slice."""
    kind = rng.randrange(3)
    if kind == 0:
        return [rng.randrange(count)]
    if kind == 1:
        return [rng.randrange(count) for _ in range(rng.randrange(1, count + 1))]
    start = rng.randrange(count)
    return slice(start, rng.randrange(start + 1, count + 1), rng.choice((None, 1, 2)))


@pytest.mark.parametrize("seed", range(20))
def test_a_view_of_a_view_is_what_numpy_says(pair, seed):
    """Pages of pages are named among those, as often as one likes."""
    _, peer, pages = pair
    rng = random.Random(seed)
    view, want = peer["pages"].view, pages
    for _ in range(rng.randrange(1, 5)):
        part = drawn(rng, len(want))
        view, want = view[part], want[part]
    got = np.zeros_like(want)
    view.get(got).wait(WAIT)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("seed", range(10))
def test_a_slice_of_a_slice_is_what_numpy_says(pair, seed):
    """Of a plain buffer, too."""
    _, peer, pages = pair
    rng = random.Random(seed)
    view, want = peer["plain"].view, pages.reshape(-1)
    for _ in range(rng.randrange(1, 5)):
        start = rng.randrange(len(want))
        part = slice(start, rng.randrange(start + 1, len(want) + 1))
        view, want = view[part], want[part]
    got = np.zeros_like(want)
    view.get(got).wait(WAIT)
    assert np.array_equal(got, want)


WRONG_VIEWS = {
    "a page of pages that is not there": lambda p, _: p[[4, 9]][[2]],
    "pages before the first": lambda p, _: p[[4, 9]][[-1]],
    "a slice past pages of pages": lambda p, _: p[[4, 9]][0:3],
    "a slice of a picked range": lambda _, x: x.only(N=(0, 2))[1:3],
    "lists of several lengths": lambda p, _: p[[1, [2]]],
    "a mask": lambda p, _: p[np.ones(PAGES, bool)],
    "everything": lambda p, _: p[...],
    "no number": lambda p, _: p["a"],
    "a slice of words": lambda p, _: p["a":],
    "a step of nothing": lambda p, _: p[::0],
    "a range of parts of numbers": lambda p, _: p.only(X=(0.9, 2.9)),
    "a range of words": lambda p, _: p.only(X=("0", "2")),
    "no range": lambda p, _: p.only(X=None),
    "a slice for a range": lambda p, _: p.only(X=slice(0, 2)),
    "half a token": lambda p, _: p[[1]].first(0.5),
}


@pytest.mark.parametrize("what", WRONG_VIEWS)
def test_what_names_no_part_of_a_memory_is_refused(pair, what):
    """Nothing is cut off, counted from the end or taken for something else."""
    _, peer, _ = pair
    with pytest.raises(CallError, match=r"'pages'|'plain'"):
        WRONG_VIEWS[what](peer["pages"], peer["plain"])


@pytest.mark.parametrize("count", [0, -1, 1 << 33, 1 << 70, 1.5, "a", None, True])
def test_a_notification_that_no_peer_takes_is_not_sent(pair, count):
    """It ended the connection; nobody waits for it either."""
    there, peer, _ = pair
    with pytest.raises(CallError, match="want a whole number from 1 to"):
        peer.notify(b"often", count)
    with pytest.raises(CallError, match="want a whole number from 1 to"):
        there.notified(b"often", count)
    peer.notify(b"often", 2)
    there.notified(b"often", 2).wait(WAIT)


@pytest.mark.parametrize(
    "body",
    [{"a": b"x"}, {"a": np.int64(1)}, {"a": float("nan")}, "abc", [1, 2], None,
     {"a": "x" * MEMBER_LIMIT}],
    ids=["bytes", "numpy", "nan", "text", "list", "none", "large"],
)  # fmt: skip
def test_a_message_that_no_peer_takes_is_not_sent(pair, body):
    """What is too large ended the connection; the next one arrives."""
    there, peer, _ = pair
    with pytest.raises(CallError, match="topic 'news': it takes a JSON object"):
        peer.send("news", body)
    peer.notify(b"after")
    there.notified(b"after").wait(WAIT)


WRONG_ENGINES = [
    {"name": 3}, {"name": None}, {"name": ""}, {"listen": 3}, {"job": 3},
    {"secret": "text"}, {"secret": b""}, {"spin_us": -1}, {"spin_us": float("nan")},
    {"spin_us": "a"}, {"lanes": 1.5}, {"lanes": "2"}, {"lanes": 0}, {"rails": "lo"},
    {"rails": 3},
]  # fmt: skip


@pytest.mark.parametrize("how", WRONG_ENGINES, ids=str)
def test_arguments_of_wrong_types_are_refused_in_words(how):
    """By an engine, before it begins anything."""
    with pytest.raises(CallError, match=f"want|{next(iter(how))}"):
        Engine(**{"name": f"e-{uuid.uuid4().hex}", **how})


@pytest.mark.parametrize("nbytes", [0, -1, 1.5, True, "5", 1 << 70])
def test_an_arena_of_no_bytes_is_refused(pair, nbytes):
    """In words, whatever it is."""
    there, _, _ = pair
    with pytest.raises(CallError, match="want bytes, 1 or more"):
        there.arena(nbytes)


@pytest.mark.parametrize("name", ["", 3, None, "n" * 1001])
def test_memory_needs_a_name(pair, name):
    """A text, that peers have room for; nothing is shared."""
    there, _, _ = pair
    before = dict(there.shelf.regions)
    with pytest.raises(CallError, match="want a name of 1 to 1000 characters"):
        there.share(np.zeros(3), name)
    with pytest.raises(StrettoError, match="a layout is a text"):
        there.share(np.zeros(3), "kept", 3)
    assert there.shelf.regions == before


def test_a_peer_that_asks_for_more_tokens_than_there_are_takes_no_memory(pair):
    """Pages are counted before any are made up for its own memory."""
    _, peer, pages = pair
    region = peer["pages"]
    text = str(region.layout)
    asked = {
        "op": "get", "region": "pages", "layout": text, "shift": 0, "other": text,
        "only": [], "tokens": 1 << 24, "lease": [region.slot, region.epoch],
    }  # fmt: skip
    tracemalloc.start()
    try:
        peer._open(peer.number(), pack_request(asked, None))
        got = np.zeros_like(pages)
        region.get(got).wait(WAIT)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.array_equal(got, pages)
    assert most < 16 << 20
