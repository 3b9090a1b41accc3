"""Memory that is taken back while a peer gets it: the old bytes, or an error."""

import threading

import numpy as np
import pytest

from stretto.errors import StaleMemory
from stretto.transfer.links.words import STAGE_BYTES

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 60
WAYS = {
    "packed": (True, "B={} X=64 float32", 256, "float32"),
    "packed, converted": (True, "B={} X=64 float32", 256, "float16"),
    "carried, converted": (True, "B={} X=32768 float32", 1 << 17, "float16"),
    "straight": (True, "B={} X=32768 float32", 1 << 17, "float32"),
    "by the stage of one host": (False, "B={} X=64 float32", 256, "float16"),
}
"""Whether by TCP, the layout, its bytes a page, and the type that we want."""


def held(engine):
    """Return what lets an engine's thread go on, which does nothing until then."""
    stop, stands = threading.Event(), threading.Event()

    def stand():
        stands.set()
        stop.wait(WAIT)

    engine.loop.call(stand)
    assert stands.wait(WAIT)
    return stop


def filled(seed, pages, each, kind):
    """Return what a child's pages hold when it has filled them."""
    raw = np.random.default_rng(seed).integers(0, 256, pages * each, dtype=np.uint8)
    with np.errstate(all="ignore"):
        return raw.view(np.float32).reshape(pages, -1).astype(kind)


@pytest.mark.parametrize("way", WAYS)
def test_a_get_of_memory_that_is_taken_back_meanwhile_is_never_half_a_get(
    engine, start, way
):
    """Its owner has more to send than fits in the stage, and ends the lease then.

    What needs no stage may all have left by then, and is all of it what there was.
    """
    is_far, text, each, kind = WAYS[way]
    pages = 4 * STAGE_BYTES // each
    child = start(listen=is_far)
    peer = engine.connect(child.address).wait(WAIT)
    layout = text.format(pages)
    child.ask("share", name="kv", nbytes=pages * each, layout=layout)
    region = peer.region("kv").wait(WAIT)
    ours = np.full(pages * each // 4, 9, kind)
    mine = engine.share(ours, "ours", layout.replace("float32", kind))
    order = np.random.default_rng(1).permutation(pages)
    child.ask("fill", name="kv", seed=0)
    for nth in range(3):
        token = bytes.fromhex(child.ask("lease", name="kv"))
        go_on = held(engine)
        transfer = region[order].get(mine, lease=token)
        child.ask("sums", name="kv")  # it has sent what there is room for, or soon
        child.ask("end", name="kv")
        child.ask("fill", name="kv", seed=nth + 1)
        go_on.set()
        said = ""
        try:
            transfer.wait(WAIT)
        except StaleMemory as e:
            said = str(e)
        assert way == "straight" or said
        if said:
            assert "given to someone else meanwhile" in said
        else:
            there = filled(nth, pages, each, kind)[order]
            np.testing.assert_array_equal(ours.reshape(pages, -1), there)
    whole = child.ask("lease", name="kv")
    region.get(mine, lease=bytes.fromhex(whole)).wait(WAIT)  # the stage is all there
    there = filled(3, pages, each, kind)
    np.testing.assert_array_equal(ours.reshape(pages, -1), there)


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_a_prepared_get_of_memory_that_was_taken_back_fails(engine, start, kind):
    """Also where it is small and packed, which needs no field."""
    child = start(listen=True)
    peer = engine.connect(child.address).wait(WAIT)
    child.ask("share", name="kv", nbytes=1 << 16, layout="B=64 X=256 float32")
    region = peer.region("kv").wait(WAIT)
    ours = np.zeros((3, 256), kind)
    mine = engine.share(ours, "ours", f"B=3 X=256 {kind}")
    get = region[[5, 1, 9]].prepare_get(mine)
    get()
    ours[:] = 9
    child.ask("unshare", name="kv")
    with pytest.raises(StaleMemory, match="given to someone else meanwhile"):
        get()
    assert (ours == 9).all()
