"""What cheats gains nothing: candidates are held against what none can beat."""

import random
import struct

import pytest
from tests.nightly import at_night

from stretto.search import problem


def belady(ids, capacity):
    """Return the misses of who knows what comes next: no policy has fewer."""
    later, following = {}, [0] * len(ids)
    for at in range(len(ids) - 1, -1, -1):
        following[at] = later.get(ids[at], len(ids) + at)
        later[ids[at]] = at
    held, missed = {}, 0
    for at, one in enumerate(ids):
        if one not in held:
            missed += 1
            if len(held) == capacity:
                held.pop(max(held, key=held.get))
        held[one] = following[at]
    return missed


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Return a problem of objects of one size, so that Belady's is the bound."""
    draw = random.Random(4)
    ids = [min(120, int(draw.paretovariate(0.6))) for _ in range(600)]
    path = tmp_path_factory.mktemp("traces") / "t.bin"
    path.write_bytes(b"".join(struct.pack("<IQIq", 0, i, 1, -1) for i in ids))
    return ids, problem("cache", trace=str(path), size="20%")


@pytest.mark.parametrize("many", [300, at_night(10_000)])
def test_no_random_policy_beats_who_knows_the_future(cache, many):
    """Nor crashes, nor misses more often than there are requests."""
    ids, made = cache
    least = belady(ids, made._capacity) / len(ids)
    draw = random.Random(many)
    policy = made.seeds()[0]
    for _ in range(many):
        other = made.fresh(draw)
        policy = made.change(draw.choice(made.changes()), (other, policy), draw)
        missed = made.misses(policy, made._whole)

        assert least <= missed <= 1, made.spell(policy)
        assert made.parse(made.spell(policy)) == policy


@pytest.fixture(scope="module")
def program():
    """Return a problem of programs."""
    return problem("program", collective="all_gather", machine="dgx1", size=1 << 16)


def spoiled(text, draw):
    """Return a candidate's text with some words changed as one who cheats would."""
    trees = [tree.split(",") for tree in text.split()]
    for _ in range(draw.randint(1, 3)):
        tree = draw.choice(trees)
        at = draw.randrange(len(tree))
        tree[at] = draw.choice(
            [str(at), "-1", "8", "99999999999999999999", "0", "x", "", "1e3", "\u0663",
             str(draw.randrange(8))]
        )  # fmt: skip
    if draw.random() < 0.1:
        del trees[draw.randrange(len(trees))]
    return " ".join(",".join(tree) for tree in trees)


def test_no_hostile_program_is_taken_for_one_that_delivers(program):
    """Of 200 spoiled ones each is refused, or every rank has every chunk."""
    draw, taken, refused = random.Random(8), 0, 0
    for _ in range(200):
        text = spoiled(program.spell(program.fresh(draw)), draw)
        if not program.judged(text, 1).passed:
            refused += 1
            continue
        taken += 1
        for chunk, tree in enumerate(text.split()):
            parents = [int(word) for word in tree.split(",")]
            for rank in range(8):
                way = [rank]
                while way[-1] != chunk:
                    way.append(parents[way[-1]])
                    assert len(way) <= 8, f"rank {rank} never has chunk {chunk}: {text}"

    assert taken > 5
    assert refused > 100
