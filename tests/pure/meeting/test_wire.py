"""Frames: whole ones come out, whatever else is refused without harm."""

import array
import json
import os
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.held import held, left_since

from stretto.errors import RendezvousError, WireError
from stretto.fabric.meeting import messages
from stretto.fabric.meeting.greet import greet
from stretto.fabric.meeting.messages import Offer
from stretto.fabric.messages import Hello, Leave, Propose, Verdict
from stretto.fabric.wire import (
    HEADER,
    MAGIC,
    STRANGER_LIMIT,
    Connection,
    Decoder,
    Descriptor,
    Frame,
    Refused,
    encode,
    wait_ready,
)

HELLO = Hello(
    identity="m1",
    rank=1,
    num_ranks=2,
    pid=3,
    host="h",
    version="1",
    start_s=9.0,
    within_s=9.0,
)
KINDS = messages.Message.__subclasses__()
BODIES = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9))


@given(st.lists(BODIES, max_size=5), st.lists(st.integers(1, 40)))
def test_frames_survive_any_cutting(bodies, cuts):
    """However the stream is cut, the same objects come out in order."""
    data = b"".join(encode(body) for body in bodies)
    decoder, found = Decoder(), []
    for cut in [*cuts, len(data) or 1]:
        found += [f.body for f in decoder.feed(data[:cut])]
        data = data[cut:]

    assert bodies == found


@given(st.binary(min_size=4, max_size=200))
def test_garbage_is_refused_or_awaited_never_accepted(data):
    """Bytes that do not start with our magic end the connection."""
    if data.startswith(MAGIC):
        return
    (refused,) = Decoder().feed(data)

    assert "not a stretto frame" in refused.why


def test_an_oversized_frame_is_refused_before_it_has_come():
    """The length alone is enough to refuse it."""
    header = HEADER.pack(MAGIC, STRANGER_LIMIT + 1, 0)

    (refused,) = Decoder().feed(header)

    assert f"at most {STRANGER_LIMIT}" in refused.why


BAD_BODIES = [
    b"{",
    b"[1]",
    b"\xff\xfe",
    b"[" * 4000,
    b"[" * 100 + b"]" * 100,
    b'{"a":' * 70 + b"1" + b"}" * 70,
    b'{"mac": "\\ud800"}',
    b'{"\\udfff": 1}',
    b'{"a": 1e999}',
    b'{"a": NaN}',
    b'{"a": ' + b"9" * 3000 + b"}",
]


@pytest.mark.parametrize("text", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_body_that_is_no_object_is_refused(text):
    """Broken or other JSON, of any depth, and what JSON has and UTF-8 has not."""
    (refused,) = Decoder().feed(HEADER.pack(MAGIC, len(text), 0) + text)

    assert "body is" in refused.why


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
SAID = st.dictionaries(
    st.sampled_from([f for kind in KINDS for f in ("say", *kind.__slots__)]),
    JSON | st.sampled_from([kind.__name__ for kind in KINDS]),
)


@given(st.binary(max_size=300) | SAID.map(lambda o: json.dumps(o).encode()))
def test_whatever_comes_is_a_message_or_a_refusal(text):
    """Nothing raises: not reading it, and not saying it again."""
    for part in (text, HEADER.pack(MAGIC, len(text), 0) + text):
        for found in Decoder().feed(part):
            message = messages.read(found)
            if isinstance(message, Refused):
                message.why.encode()
            else:
                encode(messages.to_body(message))


def test_a_refusal_is_the_last_that_is_read():
    """What comes after it on that connection is nothing."""
    decoder = Decoder()
    first, second = decoder.feed(encode({}) + b"GET / HTTP/1.1" + encode({}))

    assert isinstance(first, Frame)
    assert isinstance(second, Refused)
    assert [] == decoder.feed(encode({}))


def test_promised_descriptors_must_come():
    """A frame that claims descriptors without any is refused."""
    (refused,) = Decoder().feed(encode({}, 2))

    assert "2 descriptors promised" in refused.why


def test_descriptors_arrive_in_order_and_close_themselves():
    """Three hundred descriptors pass, more than one message of the kernel holds."""
    one, two = socket.socketpair()
    sender, receiver = Connection(one), Connection(two)
    receiver.trust()
    read, write = os.pipe()
    held = [Descriptor(os.dup(write)) for _ in range(300)]
    sender.post({"a": 1}, held)
    sender.post({"b": 2}, held[:1])
    frames = []
    while len(frames) < 2:
        assert wait_ready(receiver, 1.0)
        frames += receiver.receive()
    for number in (read, write):
        os.close(number)
    numbers = [d.number for f in frames for d in f.descriptors]

    assert [300, 1] == [len(f.descriptors) for f in frames]
    assert len(set(numbers)) == 301
    del frames, held
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(numbers[0])
    sender.close()
    receiver.close()


def test_what_has_come_of_a_frame_goes_with_its_connection():
    """Its descriptors are given back, though somebody still knows the connection."""
    one, two = socket.socketpair()
    receiver, before = Connection(two), held()
    rights = array.array("i", [one.fileno()])
    one.sendmsg([MAGIC[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    assert [] == receiver.receive()
    assert 1 == len(held().more_than(before))
    receiver.close()
    one.close()

    assert [] == left_since(before)


def test_a_reader_that_never_reads_costs_the_sender_no_waiting():
    """What a stopped peer does not take is queued, not waited for."""
    one, two = socket.socketpair()
    sender = Connection(one)
    for _ in range(20):
        sender.post({"text": "x" * 100_000})

    assert sender.is_sending
    sender.close()
    two.close()


@pytest.mark.parametrize(
    "message",
    [
        HELLO,
        Leave(failure=""),
        Offer(
            group="g",
            generation=1,
            members=(0, 1),
            fate="g",
            fate_members=(0, 1),
            tag="t",
            payload={"a": [1]},
            timeout_s=1.0,
        ),
        Propose(generation=2, identities=("a", "b"), is_fresh=True, timeout_s=1.0),
    ],
)
def test_messages_survive_the_journey(message):
    """What is said is what is heard."""
    body = json.loads(json.dumps(messages.to_body(message)))

    assert message == messages.from_body(body)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rank": "1"}, r"Hello.rank is '1', not int"),
        ({"rank": True}, r"Hello.rank is True, not int"),
        ({"start_s": -1}, r"Hello.start_s is -1, not float"),
        ({"say": "Boo"}, r"no message is called 'Boo'"),
        ({"say": None}, r"no message is called 'None'"),
    ],
)
def test_a_message_with_a_wrong_field_is_refused(change, text):
    """Every field is checked, and the text says which one was wrong."""
    body = messages.to_body(HELLO)
    refused = messages.from_body({**body, **change})

    assert re.search(text, refused.why)


def test_a_peer_that_does_not_read_is_given_up():
    """What waits for it may not grow without end."""
    here, there = socket.socketpair()
    with here, there:
        one = Connection(here)

        def flood():
            while True:
                one.post({"text": "x" * 60_000})

        with pytest.raises(WireError, match=r"the peer has not read \d+ bytes"):
            flood()


def test_a_frame_is_sent_once_whatever_breaks_in():
    """A handler's exception may cost the frame in which it comes, and no other."""
    ours, theirs = (Connection(s) for s in socket.socketpair())
    send = ours._send

    def interrupted(data, held):
        send(data, held)
        ours._send = send
        raise KeyError("of a handler")

    ours._send = interrupted
    with pytest.raises(KeyError):
        ours.post({"say": 1})
    ours.post({"say": 2})
    frames = theirs.receive()
    ours.close()
    theirs.close()

    assert [{"say": 1}, {"say": 2}] == [frame.body for frame in frames]


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("kind", ["pair", "tcp"])
@pytest.mark.parametrize("num_descriptors", [0, 1, 300])
def test_what_a_peer_said_before_it_went_is_heard(kind, unread, num_descriptors):
    """Whoever still sends hears the last words first, then that the peer has ended."""
    ours, theirs = map(Connection, pair(kind))
    if unread:  # closing with something unread resets the connection
        ours.post({"say": "early"})
    theirs.post({"say": "why"})
    theirs.close()
    wait_ready(ours, 1.0)
    held = [] if kind == "tcp" else [Descriptor(os.dup(0))] * num_descriptors
    for _ in range(3):
        ours.post({"say": "late"}, held)

    assert not ours.is_sending
    assert [{"say": "why"}] == [frame.body for frame in ours.receive()]
    with pytest.raises(EOFError):
        ours.receive()
    ours.close()


def pair(kind):
    if kind == "pair":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


def test_who_is_refused_while_it_says_hello_hears_why():
    """A rank says hello in two parts; the verdict may come between them."""
    ours, theirs = map(Connection, socket.socketpair())
    text = "rank 1 is there already"
    said = Verdict(group="", error="RendezvousError", text=text, blamed=(1,))
    theirs.post(messages.to_body(said))
    theirs.close()

    with pytest.raises(RendezvousError, match=text) as caught:
        greet(ours, rank=1, num_ranks=2, deadline_s=5.0, start_s=5.0)
    assert (1,) == caught.value.blamed
