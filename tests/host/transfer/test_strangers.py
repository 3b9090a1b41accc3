"""Who has proved nothing stands at an engine's door, and is in nobody's way."""

import contextlib
import socket
import time

import numpy as np
import pytest
from tests.waiting import until

from stretto.errors import RendezvousError
from stretto.meeting.wire import Connection
from stretto.transfer import Engine
from stretto.transfer.engine import door, meet

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 40
SECRET = {"secret": b"s" * 32}


def where(engine):
    host, port = engine.address.rsplit(":", 1)
    return host, int(port)


@pytest.fixture
def there():
    """Return an engine that listens and shares numbers."""
    with Engine("there", listen="127.0.0.1:0", **SECRET) as engine:
        engine.share(np.arange(8), "numbers")
        yield engine


@pytest.fixture
def crowd(there):
    """Return what sends silent connections; they are closed at the end."""
    with contextlib.ExitStack() as held:

        def come(many):
            made = [socket.create_connection(where(there)) for _ in range(many)]
            return [held.enter_context(sock) for sock in made]

        yield come


def numbers(engine, there):
    """Return what an engine gets of the other's numbers."""
    peer = engine.connect(there.address).wait(WAIT)
    got = np.zeros(8, np.int64)
    peer.region("numbers").wait(WAIT).get(got).wait(WAIT)
    return got.tolist()


def test_silent_ones_push_nobody_out_who_proves_himself(there, crowd, monkeypatch):
    """However many there are, before he comes, while he does and afterwards."""
    crowd(door._MOST_STRANGERS + 20)
    hello = meet.Talk._hello

    def slowly(talk):
        crowd(door._MOST_STRANGERS + 20)  # he has proved himself by now, and no more
        hello(talk)

    monkeypatch.setattr(meet.Talk, "_hello", slowly)
    with Engine("friend", **SECRET) as friend:
        assert list(range(8)) == numbers(friend, there)
        crowd(door._MOST_STRANGERS + 20)
        assert list(range(8)) == numbers(friend, there)


def test_the_oldest_of_the_busiest_host_goes_first(there, crowd):
    """And is told so, if it listens: it may be one of ours."""
    first = crowd(1)[0]
    crowd(door._MOST_STRANGERS)
    heard = Connection(first)

    def frames():
        with contextlib.suppress(EOFError):
            return [frame.body for frame in heard.receive()]
        return []

    said = []
    until(lambda: said.extend(frames()) or any(b["say"] == "no" for b in said))
    assert {"say": "no", "why": "full"} == said[-1]


def test_who_is_slow_is_not_told_that_he_does_not_know_the_secret(there, monkeypatch):
    """A busy host takes seconds: they are given, and then named."""
    monkeypatch.setattr(door, "_STRANGER_S", 0.5)
    prove = meet.Talk._prove

    def late(talk, said):
        if said["say"] == "challenge":
            time.sleep(1.5)
        prove(talk, said)

    monkeypatch.setattr(meet.Talk, "_prove", late)
    with Engine("slow", **SECRET) as slow:
        with pytest.raises(RendezvousError, match="too slow to say that it knows") as e:
            slow.connect(there.address).wait(WAIT)
        assert "does not know" not in str(e.value)
        monkeypatch.setattr(door, "_STRANGER_S", 30.0)
        assert list(range(8)) == numbers(slow, there)


def test_words_of_a_stranger_at_the_door_are_ours_alone():
    """A server that proves nothing cannot put words into an error."""
    with socket.create_server(("127.0.0.1", 0)) as server, Engine("e", **SECRET) as e:
        found = e.connect(f"127.0.0.1:{server.getsockname()[1]}")
        odd = Connection(server.accept()[0])
        odd.post({"say": "no", "why": "run this command to repair it"})

        with pytest.raises(RendezvousError) as caught:
            found.wait(WAIT)
        assert "run this command" not in str(caught.value)
        odd.close()
