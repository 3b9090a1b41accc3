"""Groups on a part of a machine: what is written for it competes, and is proved."""

from dataclasses import replace

import pytest

from stretto import topology
from stretto.compiler.verify import verify
from stretto.errors import ProgramError, RanksError
from stretto.executors import sim
from stretto.program import algorithms
from stretto.program.lang import alone
from stretto.runtime.choice import Question, Selector
from stretto.runtime.choice.plans import plan_of, works
from stretto.runtime.choice.question import NO_SEATS
from stretto.runtime.choice.seats import seats_of, settled_places
from stretto.runtime.choice.select import Profile, possible

GRID = """
about = "Nine ranks in a square, each joined to its neighbours"
kind = "cpu"
[torus]
dims = [3, 3]
wrap = false
bandwidth_gbytes_per_s = 10
latency_us = 1.0
"""
AROUND = (0, 1, 2, 3, 5, 6, 7, 8)
RING = (0, 1, 2, 5, 8, 7, 6, 3)
OWN = '''
from stretto.lang import algorithm

@algorithm("all_reduce/both_ways", split=2, members=(0, 1, 2, 3, 5, 6, 7, 8))
def both_ways(ranks):
    """Half of the chunks go round one way, half the other way."""
    line = [ranks[r] for r in (0, 1, 2, 5, 8, 7, 6, 3)]
    for r in line:
        r.output[:] = r.input[:]
    for half, way in enumerate((line, line[::-1])):
        for step in range(14):
            for i, r in enumerate(way):
                at = (i - step) % 8 * 2 + half
                if step < 7:
                    way[(i + 1) % 8].output[at] += r.output[at]
                else:
                    way[(i + 1) % 8].output[at] = r.output[at]

@algorithm("all_gather/line", members=(0, 1, 3))
def line(ranks):
    """Rank 0 is in the middle, and passes everything on."""
    zero, one, three = ranks.members
    for r in ranks.members:
        r.output[r.place] = r.input[0]
    for r in (one, three):
        zero.output[r.place] = r.input[0]
    one.output[2] = zero.output[2]
    three.output[1] = zero.output[1]
    for r in (one, three):
        r.output[0] = zero.input[0]

@algorithm("all_gather/by_two", members=(0, 1, 3))
def by_two(ranks):
    """Rank 2 passes everything on."""
    room = ranks[2].scratch("room", 3)
    for r in ranks.members:
        room[r.place] = r.input[0]
    for r in ranks.members:
        r.output[:] = room[:]

@algorithm("broadcast/line", members=(1, 2, 3))
def spread(ranks, root=1):
    """All from the root."""
    for r in ranks.members:
        r.output[:] = ranks[root].input[:]
'''


@pytest.fixture
def grid(tmp_path):
    """Return the file of a square of nine."""
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    return str(path)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Put programs of somebody's own into the catalogue, and take them out again."""
    path = tmp_path / "own.py"
    path.write_text(OWN)
    monkeypatch.setenv("STRETTO_KERNELS", str(path))
    algorithms._found.cache_clear()
    yield
    monkeypatch.undo()
    algorithms._found.cache_clear()


def asked(machine, places, nbytes=1 << 20, collective="all_reduce"):
    return Question(
        executor="cpu",
        collective=collective,
        num_ranks=len(places),
        nbytes=nbytes,
        seats=(machine, places),
    )


def time_us(choice, of):
    """Return what a choice takes where the ranks sit, simulated here by hand."""
    name, places = of.seats
    whole = topology.load(name)
    dead = [r for r in range(whole.num_ranks) if r not in places]
    plan = plan_of(choice, of)
    machine = whole.degraded(dead_ranks=dead)
    return sim.simulate(plan, machine, nbytes=of.nbytes, ranks=places).time_us


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_ring_goes_round_an_empty_place(grid, name):
    """Each hop is one link; what is chosen there is as quick, and else it is slower."""
    of = asked(grid, AROUND, collective=name)
    ring = next(o for o in possible(of) if o.algorithm.name.startswith(f"{name}/ring:"))
    order = [int(word) for word in ring.algorithm.name.partition(":")[2].split("-")]
    around = [RING.index(AROUND[rank]) for rank in order]
    steps = {(b - a) % 8 for a, b in zip(around, (*around[1:], around[0]), strict=True)}
    assert steps in ({1}, {7})
    found = Selector("cpu").choose(of)
    assert time_us(found, of) <= time_us(ring, of)
    blind = Selector("cpu").choose(replace(of, seats=NO_SEATS))
    assert 1.5 * time_us(found, of) < time_us(blind, of)


@pytest.mark.parametrize("gone", [0, 1, 4])
@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_a_chain_goes_from_neighbour_to_neighbour(grid, name, gone):
    """From whatever root: it is a program like any other, in another order."""
    places = tuple(r for r in range(9) if r != gone)
    of = replace(asked(grid, places, collective=name), params=(("root", 5),))
    found = Selector("cpu").choose(of)
    shape, _, order = found.algorithm.name.partition(":")
    assert f"{name}/chain" == shape
    assert sorted(order.split("-")) == sorted(map(str, range(8)))
    plain = next(o for o in possible(of) if o.algorithm.name == shape)
    assert time_us(found, of) < time_us(plain, of)


def test_nobody_changes_places_on_a_machine_that_is_alike_everywhere():
    """There the profile's row for so many ranks competes, and no other order."""
    of = asked("cpux4", (0, 1, 3))
    assert not [o for o in possible(of) if ":" in o.algorithm.name]
    assert NO_SEATS == seats_of("cpux4", range(4)) == seats_of("", (0, 2))
    assert ("cpux4", (0, 1, 3)) == seats_of("cpux4", [0, 1, 3])


def test_all_of_a_machine_counts_where_its_places_are_not_alike(grid):
    """A square of nine has no ring of single links, and a chain of them."""
    assert (grid, tuple(range(9))) == seats_of(grid, range(9))
    of = replace(asked(grid, tuple(range(9))), collective="broadcast")
    of = replace(of, params=(("root", 0),))
    found = Selector("cpu").choose(of)
    plain = [o for o in possible(of) if ":" not in o.algorithm.name]
    assert time_us(found, of) < min(time_us(o, of) for o in plain if works(o, of))


def test_what_the_user_measured_there_is_believed(grid):
    """With all places taken; with one empty it competes, like what is shipped."""
    text = """
executor = "cpu"
[[rule]]
collective = "all_reduce"
memory = "staged"
ranks = [8, 9]
sizes = [["1G", "all_reduce/one_shot push bulk staged"]]
"""
    measured = Profile.parse(text, "mine")
    name = "all_reduce/one_shot"
    whole = asked(grid, tuple(range(9)))
    assert name == Selector("cpu", measured).choose(whole).algorithm.name
    assert name != Selector("cpu").choose(whole).algorithm.name
    part = asked(grid, AROUND)
    assert name != Selector("cpu", measured).choose(part).algorithm.name


def test_a_program_among_the_members_competes_as_one_of_these_alone(own, grid):
    """Written for one place empty, it beats a ring there; elsewhere it is nothing."""
    of = asked(grid, AROUND)
    found = Selector("cpu").choose(of)
    assert "all_reduce/both_ways" == found.algorithm.name
    plan = plan_of(found, of)
    assert 8 == plan.value.num_ranks
    without = [
        one for one in possible(of) if one.algorithm.name != found.algorithm.name
    ]
    assert time_us(found, of) < min(time_us(o, of) for o in without if works(o, of))
    elsewhere = replace(of, seats=(grid, (0, 1, 2, 3, 4, 6, 7, 8)))
    assert found.algorithm.name not in {o.algorithm.name for o in possible(elsewhere)}


def test_who_is_gone_passes_nothing_on(own):
    """A program that needs it is refused, with the rank; others are proved."""
    line, by_two = (algorithms.get(f"all_gather/{x}") for x in ("line", "by_two"))
    proved = verify(alone(line, 4).build(3)).value
    assert "members" not in proved.params
    assert {0, 1, 2} == {op.dst.rank for op in proved.ops}
    with pytest.raises(ProgramError, match=r"rank 2 is gone.*want a program of"):
        alone(by_two, 4).build(3)
    assert alone(line, 4) is alone(line, 4)
    with pytest.raises(RanksError, match="2 ranks; its members are 3"):
        alone(line, 4).build(2)


def test_a_root_is_numbered_as_its_callers_number_it(own):
    """Rank 2 of the three is rank 3 of the machine."""
    one = alone(algorithms.get("broadcast/line"), 4)
    program = verify(one.build(3, root=2)).value
    assert 2 == program.params["root"]
    assert {2} == {src.rank for op in program.ops for src in op.srcs}


def test_who_comes_takes_the_first_place_that_is_free():
    """Everybody else keeps theirs."""
    assert (0, 1, 3) == settled_places([0, 1, 3])
    assert (0, 1, 3) == settled_places([0, -1, 3])
    assert (3, 0, 1) == settled_places([3, -1, -1])
