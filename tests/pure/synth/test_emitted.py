"""The files that schedules are written as, of every collective and in every form."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from tests.nightly import nightly

from stretto import topology
from stretto.compiler.verify import verify
from stretto.errors import TopologyError
from stretto.program.ir import parse_program
from stretto.synth import (
    COLLECTIVES,
    Budget,
    from_machine,
    replay,
    synthesize,
    written,
)
from stretto.synth.emit.file import build, emit
from stretto.synth.network.model import Network, NetworkLink
from stretto.synth.network.symmetry import symmetry_of, trivial
from stretto.synth.schedules.repeating import in_waves
from stretto.synth.schedules.schedule import Demand, TimedMove, TimedSchedule
from stretto.synth.schedules.unfold import unfold


def line(ranks):
    """Return a network of ranks in a line."""
    ways = [(r, r + 1) for r in range(ranks - 1)]
    ways += [(b, a) for a, b in ways]
    return Network(
        name="line",
        num_ranks=ranks,
        num_nodes=ranks,
        links=tuple(NetworkLink(src=a, dst=b, rate=Fraction(1)) for a, b in ways),
        box=(0,) * ranks,
        members=tuple(range(ranks)),
    )


def along_the_line(demand, symmetry):
    """Return the schedule in which every chunk goes from neighbour to neighbour."""
    moves = []
    links = {(k.src, k.dst): (i,) for i, k in enumerate(demand.network.links)}
    collects = demand.combines
    spreads = demand.collective not in ("reduce", "reduce_scatter")
    for chunk in demand.chunks():
        here, late = chunk.origin, chunk.number % demand.split
        members = demand.network.members
        ends = members if collects else chunk.wanted
        hops = {hop for end in ends for hop in path(here, end)}
        for a, b in sorted(hops, key=lambda hop: -abs(hop[1] - here)):
            far = Fraction(late + 3 - abs(b - here))
            if collects:
                moves.append(
                    TimedMove(far, chunk.number, b, a, links[b, a], combine=True)
                )
        for a, b in sorted(hops, key=lambda hop: abs(hop[1] - here)):
            far = Fraction(late + 10 + abs(b - here))
            if spreads:
                moves.append(TimedMove(far, chunk.number, a, b, links[a, b]))
    if symmetry.order > 1:
        kept = set(symmetry.representatives)
        first = {c.number for c in demand.chunks() if c.origin in kept}
        moves = [m for m in moves if m.chunk in first]
    return unfold(demand, moves, symmetry, "by hand")


def path(start, end):
    """Return the hops from a rank to another."""
    step = 1 if end > start else -1
    return [(a, a + step) for a in range(start, end, step)]


def texts(group, split, change=lambda schedule: schedule):
    """Yield the proved files of all collectives."""
    network = replace(line(3), members=group)
    for collective in COLLECTIVES:
        demand = Demand(
            collective=collective,
            network=network,
            nbytes=1,
            split=split,
            root=group[-1],
        )
        schedule = change(along_the_line(demand, trivial(network)))
        text = emit(schedule, "it")
        assert verify(build(text, schedule))
        yield text


def test_files_of_all_ranks(golden):
    """A copy is a row, and a sum is one."""
    golden("\n".join(texts((0, 1, 2), 1)))


def test_files_among_some_ranks(golden):
    """What the relay in the middle passes on waits in its scratch."""
    golden("\n".join(texts((0, 2), 1)))


@pytest.mark.parametrize("group", [(0, 1, 2), (0, 2)], ids=["all", "some"])
def test_files_that_list_every_move(golden, group):
    """Every move is a row, sums are added up as they come."""
    golden("\n".join(texts(group, 1, lambda s: replace(s, listed=True))))


FORMS = {
    "loops": lambda s: s,
    "listed": lambda s: replace(s, listed=True),
    "waves": lambda s: in_waves(s, Fraction(10**9)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("group", [(0, 1, 2), (0, 2)], ids=["all", "some"])
@pytest.mark.parametrize("pieces", [0, 1, 2, 3, 6])
def test_pieces_of_many_chunks_wait_whole(group, collective, form, pieces):
    """What waits in scratch is as long as what is moved, however a vector is cut."""
    network = replace(line(3), members=group)
    demand = Demand(
        collective=collective, network=network, nbytes=1, split=6,
        root=group[-1], pieces=pieces,
    )  # fmt: skip
    schedule = FORMS[form](along_the_line(demand, trivial(network)))

    assert verify(build(emit(schedule, "it"), schedule))


def test_files_that_loop_over_waves(golden):
    """A way is a row, however many pieces go it; what is irregular stays so."""
    golden("\n".join(texts((0, 1, 2), 5, lambda s: in_waves(s, Fraction(10**9)))))


def test_files_that_loop_over_images(golden):
    """Of what is the same seen from both ends, one half is a row."""
    symmetry = symmetry_of(line(2), [(1, 0)])
    found = []
    for collective in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter"):
        demand = Demand(collective=collective, network=line(2), nbytes=1)
        schedule = along_the_line(demand, symmetry)
        found.append(emit(schedule, "it"))
        assert verify(build(found[-1], schedule))
    golden("\n".join(found))


def test_a_way_that_the_machine_lacks_is_refused():
    """A program with ways belongs to machines that have them."""
    text = (
        "program all_gather/odd collective=all_gather ranks=2 split=1\n"
        "  r0.output[0] = r0.input[0]\n"
        "  r1.output[1] = r1.input[0]\n"
        "  r1.output[0] = r0.input[0] via nowhere\n"
        "  r0.output[1] = r1.input[0] via -\n"
    )
    program = verify(parse_program(text))
    assert str(program.value) == text
    with pytest.raises(TopologyError, match="no link from 0 to nowhere"):
        written(program, topology.load("dgx1"), nbytes=1000, ranks=(0, 1))


def meeting(chance, ways, chunk, ranks):
    """Return moves, and what each waits for, of a sum that some ranks complete at once.

    The others have each a parent: sums go up, the whole goes down.
    """
    order = chance.sample(ranks, len(ranks))
    many = chance.choice((2, 2, 3))
    met, others = order[:many], order[many:]
    parent = {v: chance.choice(order[: many + i]) for i, v in enumerate(others)}
    below = {v: [u for u in others if parent[u] == v] for v in order}
    moves = {}

    def add(src, dst, after, *, combine):
        move = TimedMove(Fraction(0), chunk, src, dst, ways[src, dst], combine)
        moves[chunk, src, dst, combine] = move, after

    up = {v: (chunk, v, parent[v], True) for v in others}
    for v in others:
        add(v, parent[v], [up[u] for u in below[v]], combine=True)
    for a, b in itertools.permutations(met, 2):
        add(a, b, [up[u] for u in below[a]], combine=True)
    for v in others:
        p = parent[v]
        after = [(chunk, parent.get(p), p, False)]
        if p in met:
            after = [(chunk, u, p, True) for u in met if u != p]
            after += [up[u] for u in below[p]]
        add(p, v, after, combine=False)
    return moves


@pytest.mark.parametrize("seed", nightly(range(60), 12))
def test_sums_that_meet_are_written_as_they_are_replayed(seed):
    """In whatever order: what comes before a rank has its own side waits apart."""
    chance = random.Random(seed)
    machine = topology.load("h200x8")
    network = from_machine(machine)
    if seed % 3 == 0:
        network = network.group([1, 3, 4, 6], relays=False)
    ranks, leaving = list(range(network.num_ranks)), network.leaving()
    ways = {(h.src, h.dst): h.links for r in ranks for h in network.hops(r, leaving)}
    left = {}
    for chunk in ranks:
        left |= meeting(chance, ways, chunk, ranks)
    done, moves = set(), []
    while left:
        ready = [k for k, (_, after) in left.items() if done.issuperset(after)]
        key = chance.choice(ready)
        done.add(key)
        moves.append(left.pop(key)[0]._replace(start=Fraction(len(moves))))
    demand = Demand(collective="all_reduce", network=network, nbytes=65536)
    schedule = TimedSchedule(
        demand=demand,
        moves=tuple(moves),
        symmetry=trivial(network),
        folded=tuple(moves),
        listed=True,
    )
    program = verify(build(emit(schedule, "it"), schedule))
    at = network.places or ()
    us = written(program, machine, nbytes=65536, ranks=at).time_us

    assert schedule.meetings()
    assert us == pytest.approx(float(replay(schedule).us), rel=1e-9)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "reduce_scatter"])
@pytest.mark.parametrize("name", ["h200x4", "torus3x3"])
def test_what_is_promised_is_what_links_take_as_written(name, collective):
    """Also of sums of inputs in one line, where links serve in another order."""
    machine = topology.load(name)
    found = synthesize(
        collective, from_machine(machine), 65536, splits=(1,), budget=Budget(seconds=0)
    )
    us = written(verify(found.program("it")), machine, nbytes=65536).time_us

    assert us == pytest.approx(float(found.us), rel=1e-9)
    assert f"{us:.6g} us" in found.text("it")
