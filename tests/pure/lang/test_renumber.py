"""Programs whose ranks are numbered otherwise: proved, and the same but for that."""

import random
from collections import Counter

import pytest
from tests.checking.judge import program_is_right

from stretto.compiler.verify import verify
from stretto.errors import CallError, ProgramError, RanksError, UnknownNameError
from stretto.program import algorithms
from stretto.program.ir import parse_program
from stretto.program.lang import algorithm, ordered, renumbered
from stretto.runtime.choice.select import parse_pin

RANKS = (2, 3, 4, 6, 8)


def shuffled(n, seed):
    """Return an order that is not the usual one, where there is another."""
    order = list(range(n))
    while n > 1 and order == sorted(order):
        random.Random(seed).shuffle(order)
        seed += 1
    return tuple(order)


def sent(program):
    """Return how many chunks go from rank to rank."""
    found = Counter()
    for op in program.ops:
        for src in op.srcs:
            if src.rank != op.dst.rank:
                found[src.rank, op.dst.rank] += src.stop - src.start
    return found


def of_all_ranks(name):
    one = algorithms.get(name)
    return [n for n in RANKS if one.refuses(n) is None]


@pytest.mark.parametrize("name", algorithms.names())
def test_any_algorithm_in_any_order_is_proved(name):
    """And as much is sent, by those who stand where others stood."""
    one = algorithms.get(name)
    for n in of_all_ranks(name):
        pairs = tuple((r, (r + 1) % n) for r in range(n))
        params = {"pairs": pairs} if one.collective == "permute" else {}
        if one.knows_hosts:
            params["hosts"] = tuple(r // 2 for r in range(n))
        order = shuffled(n, seed=n)
        try:
            before = one.build(n, **params)
        except RanksError:  # hosts of so few ranks are not served
            continue
        if one.collective == "permute":
            params["pairs"] = tuple((order[a], order[b]) for a, b in pairs)
        if one.knows_hosts:
            params["hosts"] = tuple(order.index(r) // 2 for r in range(n))
        after = verify(ordered(one, order).build(n, **params)).value
        assert f"{name}:{'-'.join(map(str, order))}" == after.name
        moved = {(order[a], order[b]): k for (a, b), k in sent(before).items()}
        assert moved == sent(after)
        assert after == parse_program(str(after))


@pytest.mark.parametrize("name", algorithms.names())
def test_in_its_own_order_a_program_is_what_it_was(name):
    """Its text is the same, so is what its plans are kept under."""
    for n in of_all_ranks(name):
        one = algorithms.get(name)
        params = {"pairs": ((0, 1),)} if one.collective == "permute" else {}
        program = one.build(n, **params)
        assert str(program) == str(renumbered(program, dict(enumerate(range(n)))))


@pytest.mark.parametrize("name", ["all_gather/ring", "all_to_all/bruck", "gather/flat"])
def test_parts_come_out_where_their_ranks_are(name):
    """Run by the reference, with parts of any size, they are what the oracle says."""
    program = ordered(algorithms.get(name), (3, 0, 4, 1, 2)).build(5, split=2)
    assert all(program_is_right(program, seed) for seed in range(4))


def test_a_root_is_who_the_caller_says():
    """Whom nobody names is where the author had rank 0."""
    one = ordered(algorithms.get("broadcast/chain"), (2, 0, 1))
    assert 2 == one.root == one.build(3).params["root"]
    assert 1 == verify(one.build(3, root=1)).value.params["root"]
    assert {(1, 2): 3, (2, 0): 3} == sent(one.build(3, root=1))


def test_members_are_renumbered_and_others_still_pass_on():
    """Parts lie in the order of the members as they are now."""

    @algorithm("all_gather/by_two", members=(0, 1, 3))
    def by_two(ranks):
        """Rank 2 passes everything on."""
        room = ranks[2].scratch("room", 3)
        for r in ranks.members:
            room[r.place] = r.input[0]
        for r in ranks.members:
            r.output[:] = room[:]

    found = verify(renumbered(by_two.build(4), {0: 3, 1: 0, 2: 1, 3: 2})).value
    assert (0, 2, 3) == found.params["members"]
    assert {1} == {s.rank for op in found.ops for s in op.srcs if op.dst.rank != 1}
    with pytest.raises(ProgramError, match=r"\(3,\) are members, and are gone"):
        renumbered(by_two.build(4), {0: 0, 1: 1, 2: 2})


def test_a_name_may_say_the_order():
    """What `explain` prints can be pinned."""
    one = algorithms.get("all_reduce/ring:1-0-2")
    assert one is algorithms.get("all_reduce/ring:1-0-2")
    assert {(1, 0), (0, 2), (2, 1)} == set(sent(one.build(3)))
    assert one is parse_pin("all_reduce/ring:1-0-2 push bulk staged")[0]
    assert one.name not in algorithms.names()
    with pytest.raises(RanksError, match="4 ranks; its order has 3"):
        one.build(4)
    with pytest.raises(RanksError, match="power of two"):
        algorithms.get("reduce_scatter/recursive:1-0-2").build(3)


@pytest.mark.parametrize("order", ["1-1-0", "1-2-3", "0-1-99999", "1"])
def test_an_order_that_is_none_is_refused(order):
    """Each rank stands somewhere, once."""
    with pytest.raises(CallError, match="want each rank from 0 to"):
        algorithms.get(f"all_reduce/ring:{order}")


@pytest.mark.parametrize(
    "name", ["ring:", "ring:0-", "ring:-1", "none:0-1", "ring:\u0660"]
)
def test_a_name_that_is_none_is_unknown(name):
    """Only digits and dashes are an order."""
    with pytest.raises(UnknownNameError):
        algorithms.get(f"all_reduce/{name}")


def test_what_cannot_stand_otherwise_is_refused():
    """Members are ranks by number; ways by name are those of ranks as they stand."""

    @algorithm("all_gather/some", members=(0, 1))
    def some(ranks):
        """Two of them."""

    @algorithm("broadcast/ways")
    def ways(ranks, root=0):
        """Over a switch by its name."""
        for r in ranks:
            r.output[:] = ranks[root].input[:].via("spine")

    with pytest.raises(CallError, match="has members"):
        ordered(some, (1, 0, 2))
    with pytest.raises(ProgramError, match=r"ways by name.*want broadcast/ways"):
        ordered(ways, (1, 0)).build(2)
