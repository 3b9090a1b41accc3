"""Packets in queues: the same with and without Numba, and what theory says of them."""

import math
from dataclasses import replace

import pytest
from tests.nightly import nightly

from stretto import network
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import TopologyError
from stretto.executors.sim import simulate
from stretto.fabric import jit
from stretto.program import algorithms
from stretto.topology import load
from stretto.topology.traffic import Packets, Parcel, may_fail

FAST = not jit.missing()
CONTROLS = [n for n in network.names() if n != "mltcp"]
PLAIN = [*CONTROLS, "mltcp+dctcp"]


def incast(machine, name, senders, nbytes, **how):
    """Let ranks 1, 2, ... send to rank 0 at once; return the traffic and arrivals."""
    how.setdefault("compiled", FAST)
    traffic, found = Packets(machine, network.find(name), **how), []
    for i in range(senders):
        parcel = Parcel(i, machine.route(i + 1, 0), nbytes)
        traffic.send(parcel, ready_us=0.0, queue=i)
    while traffic.next_us() < math.inf:
        found += traffic.step()
    return traffic, found


def shallow(machine, us):
    """Return a machine whose switches have that little buffer."""
    return replace(machine, ports=replace(machine.ports, buffer_us=us))


@pytest.mark.skipif(not FAST, reason=jit.missing() or "-")
@pytest.mark.parametrize("name", nightly(PLAIN, 4))
def test_numba_changes_no_result(name):
    """Every event is at the same picosecond: queues, marks, losses and all."""
    machine = may_fail(shallow(load("clos2x8"), 40.0))
    runs = [
        incast(machine, name, 4, 2e5, compiled=fast, loss={"1->leaf0": 0.01}, seed=3)
        for fast in (True, False)
    ]
    (one, first), (two, second) = runs

    assert first == second
    assert one.counts() == two.counts()
    assert one.num_events == two.num_events


@pytest.mark.parametrize("name", nightly(CONTROLS, 3))
def test_a_ring_takes_the_same_time_under_every_control(name):
    """One flow a port: nothing to control, so all are within 1 % of PFC alone.

    Not so HPCC: it keeps 5 % of every link free by its very definition, also here.
    """
    program = verify(algorithms.get("all_reduce/ring").build(8))
    plan = verify_plan(lower(program, Schedule.parse("bulk")), program)
    machine = load("clos1x8")
    times = [
        simulate(
            plan,
            machine,
            nbytes=8 << 20,
            tile_bytes=1 << 30,
            traffic=Packets(machine, network.find(cc), compiled=FAST),
        ).time_us
        for cc in ("pfc", name)
    ]
    hops = 14 * (2 * 1.0 + 1000 / 12500)  # two links, and a packet stored on the way
    ideal = 2 * 7 / 8 * (8 << 20) / 12500 + hops

    if name.startswith("hpcc"):
        assert times[0] <= times[1] <= 1.01 * times[0] / 0.95
    else:
        assert times[0] == pytest.approx(times[1], rel=0.01)
    assert times[0] == pytest.approx(ideal, rel=0.01)


@pytest.mark.parametrize("name", CONTROLS)
def test_nothing_is_dropped_where_there_is_headroom(name):
    """Seven to one into shallow buffers: links are paused, and nothing is lost."""
    machine = shallow(load("clos1x8"), 60.0)
    traffic, found = incast(machine, name, 7, 1e6)
    counts = traffic.counts()

    assert 7 == len(found)
    assert 0 == sum(c.drops for c in counts)
    if name == "pfc":
        assert 0 < sum(c.pauses for c in counts)


def test_what_is_lost_is_sent_again():
    """Without pauses buffers overflow, and links lose: all bytes come all the same."""
    machine = may_fail(shallow(load("clos1x8"), 20.0))
    traffic, found = incast(machine, "cubic", 5, 3e5, loss={"2->leaf0": 0.02})

    assert 5 == len(found)
    assert 0 < sum(c.drops for c in traffic.counts())


def test_a_link_that_fails_is_gone_around():
    """Flows over a dead spine link take another and are whole in the end."""
    machine = may_fail(load("leaf_spine2x4"))
    traffic = Packets(machine, network.find("cubic"), compiled=FAST)
    for i in range(4):
        traffic.send(Parcel(i, machine.route(i, 4 + i), 3e5), ready_us=0.0, queue=i)
    traffic.run_until(20.0)
    traffic.fail("leaf0->spine0")
    found = []
    while traffic.next_us() < math.inf:
        found += traffic.step()

    assert {0, 1, 2, 3} == {d.what for d in found}


@pytest.mark.parametrize("many", [2, 7])
def test_dctcp_keeps_its_queue_in_the_band_of_theory(many):
    """From K - A to K + N packets, 95 % of the time after 5 ms; links stay full.

    Queues are whole packets, so the band gets one more at either end.
    """
    machine = load("clos1x8")
    traffic = Packets(machine, network.find("dctcp"), compiled=FAST)
    for i in range(many):
        traffic.send(Parcel(i, machine.route(i + 1, 0), 2e8), ready_us=0.0, queue=i)
    traffic.run_until(5000.0)
    before = sum(traffic.received(i) for i in range(many))
    queues = []
    for step in range(1, 1001):
        traffic.run_until(5000.0 + 5 * step)
        queues.append(traffic.queued("leaf0->0") / 1000)
    rate = (sum(traffic.received(i) for i in range(many)) - before) / 5000.0
    mark, on_way = 24 * 12.5, 4.3 * 12.5
    sway = math.sqrt(2 * many * (on_way + mark)) / 2
    inside = [mark - sway - 1 <= q <= mark + many + 1 for q in queues]

    assert 0.95 <= sum(inside) / len(inside)
    assert 0.99 * 12500 <= rate


@pytest.mark.parametrize("later_us", [0.0, 1000.0, 1250.0, 3000.0])
def test_two_flows_of_dcqcn_are_fair_after_20_ms(later_us):
    """One that comes later has within 10 % of half the link, 20 ms after it came.

    Of 13 starts one, 5 ms later, misses it: 13 % (congestion_study_202611.md).
    """
    machine = load("clos1x8")
    traffic = Packets(machine, network.find("dcqcn"), compiled=FAST)
    for i, ready in enumerate((0.0, later_us)):
        parcel = Parcel(i, machine.route(i + 1, 0), 6e8)
        traffic.send(parcel, ready_us=ready, queue=i)
    traffic.run_until(later_us + 20_000.0)
    before = [traffic.received(i) for i in range(2)]
    traffic.run_until(later_us + 40_000.0)
    got = [traffic.received(i) - b for i, b in zip(range(2), before, strict=True)]

    assert got == pytest.approx([sum(got) / 2] * 2, rel=0.1)
    assert sum(got) == pytest.approx(20_000 * 12_500, rel=0.05)


def test_pauses_that_wait_for_one_another_are_named(tmp_path):
    """Four switches in a circle, flows of two hops each: the circle is the error."""
    lines = ['about = "x"', 'kind = "gpu"', "ranks = 4", "[ports]", "buffer_us = 30"]
    lines += [f'[[switches]]\nname = "s{i}"' for i in range(4)]
    speed = "bandwidth_gbytes_per_s = 1\nlatency_us = 1"
    for i in range(4):
        lines.append(f'[[links]]\nsrc = {i}\ndst = "s{i}"\n{speed}')
        following = f'[[links]]\nsrc = "s{i}"\ndst = "s{(i + 1) % 4}"'
        lines.append(f"{following}\nboth_ways = false\n{speed}")
    path = tmp_path / "circle.toml"
    path.write_text("\n".join(lines))
    machine = load(path)
    traffic = Packets(machine, network.find("pfc"), compiled=FAST)
    for i in range(4):
        way = machine.route(i, (i + 3) % 4)
        traffic.send(Parcel(i, way, 1e6), ready_us=0.0, queue=i)

    with pytest.raises(TopologyError, match="pauses wait for one another") as told:
        traffic.run_until(1e5)
    assert "s0->s1 > s1->s2 > s2->s3 > s3->s0" in " > ".join(
        [str(told.value).split("one another: ")[1].split(";")[0]] * 2
    )


def test_the_same_seed_gives_the_same_run_and_another_another():
    """Marks are drawn at random, from the seed alone."""
    machine = load("clos1x8")
    runs = [incast(machine, "dcqcn", 4, 2e6, seed=seed)[1] for seed in (1, 1, 2)]

    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
