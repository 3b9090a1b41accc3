"""How far others are, as they say: what is waited for, and how that ends."""

import threading
from types import SimpleNamespace

import pytest

from stretto.errors import EngineLost, TransferCancelled, TransferError, TransferTimeout
from stretto.weights.early import FAILED, Following, RowLine
from stretto.weights.manifest import Held, Manifest

TOKEN = b"t" * 16


@pytest.fixture
def peer():
    """Return a peer that is there."""
    return SimpleNamespace(identity="p", name="them", lost="")


@pytest.fixture
def following(peer):
    """Return what waits for a peer, which it has asked."""
    asked = []
    made = Following(
        threading.Condition(threading.RLock()), lambda *a, **k: asked.append(k)
    )
    made.watch(peer, TOKEN)
    assert [{"token": TOKEN.hex()}] == asked
    return made


def says(far, token=TOKEN):
    return {"token": token.hex(), "far": far}


def test_a_peer_is_as_far_as_it_says(following, peer):
    """And no further; of what was not asked nothing is noted."""
    assert not following.has(peer, TOKEN, 1)
    following.hear(peer, says(9, b"x" * 16))
    assert not following.has(peer, TOKEN, 1)
    following.hear(peer, says(9))
    assert following.has(peer, TOKEN, 9)
    assert not following.has(peer, TOKEN, 10)
    following.forget(peer, TOKEN)
    following.hear(peer, says(10))
    assert not following._far


def test_waiting_ends_when_no_more_will_come(following, peer):
    """It failed, it is gone, nothing comes for long, or we are closed."""
    following.hear(peer, says(5))
    following.wait(peer, TOKEN, 5, 0.0, lambda: None)
    with pytest.raises(
        TransferTimeout, match=r"'them' .* no further than byte 5 within"
    ):
        following.wait(peer, TOKEN, 6, 0.0, lambda: None)

    def closed():
        raise TransferCancelled("closed")

    with pytest.raises(TransferCancelled):
        following.wait(peer, TOKEN, 6, 9.0, closed)
    peer.lost = "it ended"
    with pytest.raises(EngineLost, match="'them' is gone: it ended"):
        following.wait(peer, TOKEN, 6, 9.0, lambda: None)
    following.hear(peer, says(FAILED))
    with pytest.raises(TransferError, match="was to come, and that failed"):
        following.wait(peer, TOKEN, 6, 9.0, lambda: None)


def test_rows_lie_one_after_another_in_the_order_of_a_manifest():
    """Of several groups, of parts of tensors, of scalars."""
    part = (2, 6), (0, 3)
    groups = (
        tuple(Held(name=n, shape=(8, 3), box=part, dtype="int16") for n in ("a", "b")),
        (Held(name="s", shape=(), box=(), dtype="float32"),),
        (Held(name="c", shape=(4, 2), box=((0, 4), (1, 2)), dtype="uint8"),),
    )
    line = RowLine(Manifest(groups=groups))

    assert line.end == 2 * 4 * 3 * 2 + 4 + 4
    assert line.span("a", part, part) == (0, 24)
    assert line.span("b", part, ((3, 5), (1, 2))) == (24 + 6, 24 + 18)
    assert line.span("s", (), ()) == (48, 52)
    assert line.span("c", ((0, 4), (1, 2)), ((3, 4), (1, 2))) == (55, 56)
