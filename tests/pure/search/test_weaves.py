"""Weaves: what prints is what was read, and no proved weave can go wrong."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from tests.pure.search.woven import Virtual

from stretto.compiler.weaves import LOADS, PartsBox, Weave, WeaveStep, placed, prove
from stretto.errors import ParseError, PlanError
from stretto.search.problems._weaving import CHANGES, begin, changed

GATHER, SCATTER = LOADS["gemm_all_gather"], LOADS["gemm_reduce_scatter"]
BOTH, CHAIN = LOADS["moe_dispatch_combine"], LOADS["kv_transfer"]
MANY = 150
"""Of a run; 2,800 were tried once."""
GOOD = "parts=2 | m free; a push 1.0-1; m do 0.0-1; m came 1.0-1; m do 1.0-1"


def proved(text: str, shape=GATHER, ranks: int = 2) -> Weave:
    weave = Weave.parse(text, shape, ranks)
    prove(placed(weave, shape), shape, ranks, weave.parts)
    return weave


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_where_a_search_begins_is_proved(name: str, ranks: int) -> None:
    """The first weaves of a search are right on two to four ranks."""
    shape = LOADS[name]
    for parts in (shape.parts,) if shape.parts else (1, 2, 4):
        for each, shares in itertools.product((False, True), repeat=2):
            weave = begin(shape, ranks, parts, each=each, shares=shares)
            assert proved(str(weave), shape, ranks) == weave


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "want such as 'parts=2"),
        ("parts=0 | m free", "want 1 to 16"),
        ("parts=99999999999999 | m free", "want 1 to 16"),
        ("parts=02 | m free", "want it written as"),
        ("parts=2 spare=0 | m free", "want it written as"),
        ("parts=2 spare=999 | m free", "want 0 to 64"),
        ("parts=2 | m fly", "no step is called 'fly'"),
        ("parts=2 | m " + "fly" * 4000, "no step is called 'flyfly"),
        ("parts=2 | q free", "want such as"),
        ("parts=2 | m free 1.0", "want no parts"),
        ("parts=2 | m do", "want parts, such as 1.0"),
        ("parts=2 | m do 1.1-1", "want it written as"),
        ("parts=2 | m do 1.1-0", "in order"),
        ("parts=2 | m do 2.0", "want shares 0 to 1"),
        ("parts=2 | m do 1.2", "parts 0 to 1"),
        ("parts=2 | a push 0.0", "want shares 1 to 1"),
        ("parts=2 | m do 1.99999999999999999999", "parts 0 to 1"),
        ("parts=2 | " + "; ".join(["m free"] * 200), "at most 160"),
        ("parts=2 | m free;m free", "want such as"),
    ],
)
def test_what_is_no_weave_is_refused(text: str, why: str) -> None:
    """A text that is no weave, or is written otherwise, says what is wanted."""
    with pytest.raises(ParseError, match=re.escape(why)) as said:
        Weave.parse(text, GATHER, 2)
    assert len(str(said.value)) < 200


@pytest.mark.parametrize(
    ("text", "shape", "why"),
    [
        (GOOD.replace("m free; ", ""), GATHER, "in no order"),
        (GOOD.replace("m came 1.0-1; ", ""), GATHER, "is not there yet"),
        (GOOD.replace("push 1.0-1", "push 1.0"), GATHER, "push or pull 1.1: 0 times"),
        (GOOD.replace("do 0.0-1", "do 0.0"), GATHER, "do 0.1: 0 times"),
        (GOOD + "; m do 1.0", GATHER, "do 1.0: 2 times"),
        (GOOD.replace("m came", "s came"), GATHER, "meets on streams m and s"),
        (GOOD + "; b send 1.0", GATHER, "nothing goes to others in such a call"),
        (GOOD + "; m sent 1.0", GATHER, "nothing goes to others in such a call"),
        ("parts=1 | m free; m store; m do 1.0; b send 1.0; m do 0.0; m sent 1.0",
         SCATTER, "m store: nothing comes from others"),
        ("parts=1 | m free; a pull 1.0; m do 0.0; m do 1.0", GATHER,
         "the stored input of rank 1 is not there yet"),
        ("parts=1 | m free; m store; a pull 1.0; m do 0.0; m do 1.0", GATHER,
         "the stored input of rank 0 is not there yet"),
        ("parts=1 | m store; m stored; a pull 1.0; m do 0.0; m do 1.0", GATHER,
         "in no order"),
        ("parts=1 | m free; m do 1.0; b send 1.0; m do 0.0", SCATTER,
         "is not there yet"),
        ("parts=1 | m free; b send 1.0; m do 1.0; m do 0.0; m sent 1.0", SCATTER,
         "the result of 1.0 of rank"),
    ],
)  # fmt: skip
def test_a_wrong_weave_says_what_is_wrong(text: str, shape, why: str) -> None:
    """A race, a gap or something done twice is named with its rank and part."""
    with pytest.raises(PlanError, match=re.escape(why)):
        proved(text, shape)


def test_waits_that_look_ahead_are_refused() -> None:
    """The referee does not take waits on trust."""
    steps = placed(Weave.parse(GOOD, GATHER, 2), GATHER)
    steps[1] = steps[1]._replace(waits=(4,))
    with pytest.raises(PlanError, match="waits for what is not before it"):
        prove(steps, GATHER, 2, 2)


def broken(weave: Weave, rng: random.Random) -> Weave:
    """Return a weave with some steps gone, doubled, moved, or of other parts."""
    steps = list(weave.steps)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(steps))
        how = rng.randrange(5)
        if how == 0 and len(steps) > 1:
            del steps[at]
        elif how == 1:
            steps.insert(rng.randrange(len(steps)), steps.pop(at))
        elif how == 2:
            steps[at] = steps[at]._replace(stream=rng.choice("mnabs"))
        elif how == 3:
            other = rng.randrange(len(steps))
            steps[at], steps[other] = steps[other], steps[at]
        elif steps[at].box is not None:
            low = rng.randrange(weave.parts)
            box = PartsBox(1, 1, low, rng.randrange(low, weave.parts))
            steps[at] = WeaveStep(steps[at].stream, steps[at].do, box)
    return Weave(weave.parts, tuple(steps))


def drawn(rng: random.Random) -> tuple[Weave, object, int]:
    shape = rng.choice([GATHER, SCATTER, BOTH, BOTH])
    shape = CHAIN if rng.random() < 0.05 else shape
    ranks = 2 if shape is CHAIN else rng.choice((2, 2, 3))
    parts = shape.parts or rng.choice((1, 2, 3))
    weave = begin(shape, ranks, parts, each=rng.random() < 0.5)
    for _ in range(rng.randrange(8)):
        found = changed(weave, weave, rng.choice(CHANGES[:7]), shape, rng)
        weave = found or weave
    return weave, shape, ranks


@pytest.mark.parametrize("seed", range(4))
def test_no_proved_weave_goes_wrong(seed: int) -> None:
    """Thousands of weaves, most of them broken: who is accepted is right, always."""
    rng = random.Random(seed)
    accepted = refused = shown = 0
    for _ in range(MANY):
        weave, shape, ranks = drawn(rng)
        if rng.random() < 0.6:
            weave = broken(weave, rng)
        steps = placed(weave, shape)
        try:
            prove(steps, shape, ranks, weave.parts)
            right = True
        except PlanError:
            right = False
        accepted, refused = accepted + right, refused + (not right)
        said = ""
        for _ in range(6 if right else 12):
            said = said or Virtual(steps, shape, ranks, weave.parts).wrong(3, rng)
        assert not (right and said), f"{weave}: {said}"
        shown += bool(said)
    assert accepted > MANY / 6
    assert refused > MANY / 6
    assert shown > 0.6 * refused  # it refuses little that is right
