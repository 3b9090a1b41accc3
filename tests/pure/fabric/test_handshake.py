"""The handshake: whatever comes, in any pieces, only who knows the secret is in."""

import itertools
import json
import re
import socket

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stretto.fabric import handshake
from stretto.fabric.handshake import WORDS, Handshake
from stretto.fabric.loop import Loop
from stretto.fabric.porch import Knock

SECRET, PURPOSE = b"s" * 32, "tests 1"
ENDS = [True, False]


def make(*, comes, secret=SECRET, purpose=PURPOSE, says=None, judge=lambda theirs: ""):
    said = {"rank": int(comes)} if says is None else says
    return Handshake(secret, purpose, said, comes=comes, judge=judge)


def talk(comer, door, cut=10_000):
    """Let both say all that they say, in pieces of so many bytes."""
    ways = {comer: bytearray(door.begin()), door: bytearray(comer.begin())}
    while any(ways.values()):
        for end, other in ((comer, door), (door, comer)):
            piece, ways[end] = bytes(ways[end][:cut]), ways[end][cut:]
            ways[other] += b"" if end.is_over else end.hear(piece)
    return comer, door


@pytest.mark.parametrize("cut", [1, 7, 50, 10_000])
def test_ends_that_know_the_secret_meet(cut):
    """In pieces of any size; each learns what the other says of itself."""
    comer, door = talk(make(comes=True), make(comes=False), cut)

    assert ({"rank": 0}, {"rank": 1}) == (comer.theirs, door.theirs)
    assert "" == comer.refusal + door.refusal


@pytest.mark.parametrize("order", [*itertools.product("cd", repeat=5)], ids="".join)
def test_it_makes_no_difference_who_is_heard_first(order):
    """In every order in which what is under way between two ends can arrive."""
    ends = {"c": make(comes=True), "d": make(comes=False)}
    ways = {"c": [ends["d"].begin()], "d": [ends["c"].begin()]}
    for to in order + ("c", "d") * 3:
        if ways[to] and (said := ends[to].hear(ways[to].pop(0))):
            ways["d" if to == "c" else "c"].append(said)

    assert [{"rank": 0}, {"rank": 1}] == [end.theirs for end in ends.values()]


def test_who_reads_what_is_wanted_reads_no_more():
    """What follows is left to whoever reads from that connection next."""
    comer, door = make(comes=True), make(comes=False)
    stream = bytearray(door.begin())
    door.hear(comer.begin())
    while not comer.is_over:
        taken, stream = bytes(stream[: comer.want]), stream[comer.want :]
        assert taken
        if said := comer.hear(taken):
            stream += door.hear(said) + b"what follows"

    assert b"what follows" == stream
    assert {"rank": 0} == comer.theirs


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (
            {"secret": b"t" * 32},
            "it has another secret; give all of a job the same one",
        ),
        ({"secret": b""}, "it has another secret"),
        ({"purpose": "tests 2"}, "it speaks 'tests 2' .1., we speak 'tests 1'"),
    ],
)
@pytest.mark.parametrize("comes", ENDS)
def test_who_is_another_is_refused_in_words(theirs, said, comes):
    """Another secret, or another version: neither end lets the other in."""
    comer, door = talk(
        make(comes=True, **(theirs if comes else {})),
        make(comes=False, **({} if comes else theirs)),
    )
    assert comer.theirs is door.theirs is None
    assert re.match(said, (door if comes else comer).refusal)
    assert (comer if comes else door).refusal


@pytest.mark.parametrize("name", ["_FORM", "order"])
def test_another_form_or_byte_order_is_named(monkeypatch, name):
    """It is of another version, or of a host of another kind."""
    door = make(comes=False)
    if name == "_FORM":
        monkeypatch.setattr(handshake, "_FORM", 2)
        hail, said = make(comes=True).begin(), "install one version of stretto for all"
        monkeypatch.setattr(handshake, "_FORM", 1)
    else:
        monkeypatch.setattr(handshake.sys, "byteorder", "middle")
        hail, said = make(comes=True).begin(), "its byte order is 'middle', ours"
        monkeypatch.undo()
    door.hear(hail)

    assert said in door.refusal


def test_who_may_not_come_in_hears_why():
    """It knows the secret, so it may read any words; odd values are a reason, too."""
    comer, door = make(comes=True), make(comes=False, judge=lambda _: "not you \u20ac")
    talk(comer, door)
    assert "it refuses us: not you \u20ac" == comer.refusal
    assert "not you \u20ac" == door.refusal
    _, door = talk(make(comes=True), make(comes=False, judge=lambda said: said["lane"]))
    assert "what it says of itself makes no sense: KeyError('lane')" == door.refusal


@pytest.mark.parametrize("word", WORDS)
def test_a_stranger_at_the_door_hears_one_of_few_words(word):
    """And nobody puts others into an error who has proved nothing."""
    comer, door = make(comes=True), make(comes=False)
    comer.hear(door.dismiss(word))
    assert (WORDS[word], word) == (comer.refusal, comer.word)
    for kind in (handshake._NO, handshake._REFUSAL):
        for said in ((), (door.begin(),)):
            comer = make(comes=True)
            for frame in (*said, handshake._frame(kind, b"x" * 32 + b"run this")):
                comer.hear(frame)
            assert comer.refusal
            assert "run this" not in comer.refusal


@pytest.mark.parametrize("word", sorted(WORDS))
def test_what_a_door_said_before_it_hung_up_is_heard(word):
    """Though it had gone before this end had begun to speak."""
    here, there = socket.socketpair()
    with there:
        there.sendall(make(comes=False).dismiss(word))
    loop, said = Loop(), []
    Knock(
        loop, here, make(comes=True), met=said.append,
        refused=lambda knock: said.append(knock.why),
    )  # fmt: skip
    loop.step(5)
    loop.close()

    assert [WORDS[word]] == said
    assert here.fileno() == -1


def test_tls_at_a_door_without_is_named():
    """And the other way round: an alert is all that a plain end hears."""
    for record in (b"\x16\x03\x01\x02\x00\x01\x00", b"\x15\x03\x02\x00\x02\x02\x46"):
        end = make(comes=True)
        end.hear(record)
        assert "it speaks TLS, and this process does not" in end.refusal


def recorded():
    """Return what comer and door have said, and both ends, which met."""
    comer, door = make(comes=True), make(comes=False)
    hails = comer.begin(), door.begin()
    proof = comer.hear(hails[1])
    door.hear(hails[0])
    answer = door.hear(proof)
    comer.hear(answer)
    assert comer.theirs
    assert door.theirs
    return {"comer": [hails[0], proof], "door": [hails[1], answer]}


def test_what_was_said_once_is_of_no_use_again():
    """Every connection has numbers of its own: replayed to either end, in any order."""
    said = recorded()
    frames = said["comer"] + said["door"]
    for comes in ENDS:
        for many in range(1, 4):
            for some in itertools.permutations(frames, many):
                end = make(comes=comes)
                for frame in some:
                    end.hear(frame)
                assert end.theirs is None


def test_an_end_that_hears_itself_refuses():
    """Its own words, reflected, and those of another connection of its own side."""
    for comes in ENDS:
        end = make(comes=comes)
        end.hear(end.hear(end.begin()))
        assert "it says what we say: it is this very end" == end.refusal
        one, other = make(comes=comes), make(comes=comes)
        said = one.hear(other.begin()) + other.hear(one.begin())
        one.hear(said)
        other.hear(said)
        assert one.theirs is other.theirs is None


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["comer", "door"]),
        st.sampled_from(["pass", "twice", "skip", "swap", "flip", "cut", "noise"]),
        st.integers(0, 2**32),
        st.binary(max_size=60),
    ),
    max_size=12,
)
TEXTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=9,
)
KINDS = st.sampled_from([b"h", b"p", b"r", b"n", b"x"])


@settings(max_examples=300, deadline=None)
@given(MOVES, st.booleans())
def test_whoever_stands_between_two_ends_lets_nobody_in(moves, knows):
    """He may pass, double, drop, swap, change, cut and add; not say who somebody is.

    Of two that do not share a secret neither ever takes the other for one of its own;
    of two that do each has heard what the other says, if it has heard anything.
    """
    ends = {
        "comer": make(comes=True, secret=SECRET if knows else b"t" * 32),
        "door": make(comes=False),
    }
    under_way = {"comer": [ends["door"].begin()], "door": [ends["comer"].begin()]}
    for to, what, at, noise in moves:
        way, other = under_way[to], "door" if to == "comer" else "comer"
        data = way.pop(0) if way and what not in ("noise", "skip") else b""
        if what == "skip" and way:
            way.pop(0)
        elif what == "twice":
            way.insert(0, data)
        elif what == "swap":
            data, way[:] = b"".join(way), [data]
        elif what == "flip" and data:
            nth = at % (8 * len(data))
            data = bytearray(data)
            data[nth // 8] ^= 1 << nth % 8
        elif what == "cut" and data:
            way.insert(0, data[at % len(data) :])
            data = data[: at % len(data)]
        elif what == "noise":
            data = noise
        if not ends[to].is_over:
            under_way[other].append(ends[to].hear(bytes(data)))
    if not knows:
        assert ends["comer"].theirs is ends["door"].theirs is None
    assert ends["comer"].theirs in (None, {"rank": 0})
    assert ends["door"].theirs in (None, {"rank": 1})


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.binary(max_size=80)
        | st.tuples(KINDS, st.binary(max_size=80)).map(lambda f: handshake._frame(*f))
        | st.tuples(KINDS, TEXTS.map(lambda o: json.dumps(o).encode()[:4000])).map(
            lambda f: handshake._frame(*f)
        ),
        max_size=5,
    ),
    st.booleans(),
    st.lists(st.integers(1, 40), max_size=20),
)
@example([b"STRHh\xff\xff"], False, [])
@example([handshake._frame(b"h", b"[" * 4000)], True, [])
@example([handshake._frame(b"h", b'{"nonce": "\\ud800"}')], True, [])
@example([handshake._frame(b"h", b"9" * 4096)], False, [])
def test_whatever_a_stranger_says_raises_nothing_and_lets_nobody_in(said, comes, cuts):
    """Noise, frames of noise, frames of any JSON; in any pieces, before and after."""
    ends = [make(comes=comes), make(comes=comes)]
    ends[1].hear(make(comes=not comes).begin())
    for end in ends:
        data = b"".join(said)
        for cut in [*cuts, len(data) or 1]:
            if not end.is_over:
                end.hear(data[:cut])
            data = data[cut:]
            assert end.want > 0
        assert end.theirs is None
        end.refusal.encode()


@pytest.mark.parametrize("comes", ENDS)
@pytest.mark.parametrize("says", [{"a": 1.5}, {"a": [1]}, {"a": 1 << 63}, [1], 7])
def test_what_is_said_of_oneself_is_plain(comes, says):
    """Who knows the secret, and is of another mind, is refused in words as well."""
    ends = talk(
        make(comes=True, says=says if comes else None),
        make(comes=False, says=None if comes else says),
    )
    assert "it says what makes no sense here" == ends[comes].refusal
