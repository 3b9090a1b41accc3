"""Who hangs up early has said why, and that is heard, whatever was sent since."""

import socket
import time

import pytest

from stretto.fabric import tls
from stretto.fabric.handshake import WORDS, Handshake
from stretto.fabric.loop import Loop
from stretto.fabric.porch import Knock

SECRET = b"s" * 32


@pytest.fixture
def ends():
    """Return a loop, and two sockets that are connected."""
    loop, pair = Loop(), socket.socketpair()
    yield loop, *pair
    loop.close()
    for end in pair:
        end.close()


def shake(*, comes):
    return Handshake(SECRET, "test", {}, comes=comes)


def ended(loop, sock, hears):
    """Return how a knock ends; `hears` is called after it has begun."""
    over = []
    knock = Knock(loop, sock, shake(comes=True), met=over.append, refused=over.append)
    hears()
    until = time.monotonic() + 30
    while not over and time.monotonic() < until:
        loop.step(0.1)
    assert [knock] == over
    return knock


@pytest.mark.parametrize("word", sorted(WORDS))
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_who_is_sent_away_at_once_hears_why(ends, word, late):
    """Before it has said a word, which then meets a closed connection; or after."""
    loop, ours, theirs = ends

    def send_away():
        theirs.send(shake(comes=False).dismiss(word))
        theirs.close()

    if not late:
        send_away()
    knock = ended(loop, ours, send_away if late else lambda: None)

    assert (WORDS[word], False) == (knock.why, knock.hung_up)


def test_a_refusal_behind_a_hail_is_heard(ends):
    """The answer to the hail finds nobody; the refusal lies behind it already."""
    loop, ours, theirs = ends
    other = shake(comes=False)
    theirs.send(other.begin() + other.dismiss("full"))
    theirs.close()

    assert WORDS["full"] == ended(loop, ours, lambda: None).why


def test_tls_that_fails_at_once_is_named(ends, monkeypatch):
    """The thread that encrypts ends before anything is said to it."""
    loop, ours, theirs = ends
    monkeypatch.setenv(tls.VARIABLE, "/certificates")
    monkeypatch.setitem(tls._reasons, ours.fileno(), "TLS: another authority")
    theirs.close()

    assert ended(loop, ours, lambda: None).why.startswith("TLS: another authority; ")
