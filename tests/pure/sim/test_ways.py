"""A plan keeps the ways that its program names, and the simulator charges them."""

import pytest

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule, Way, parse_plan
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import TopologyError
from stretto.executors.sim import simulate
from stretto.program.ir import parse_program
from stretto.topology import Costs, Link, Machine, Switch

NBYTES = 10**6
PROGRAM = """program broadcast/named collective=broadcast ranks=2 split=1 root=0
  r0.output[0:2] = r0.input[0:2]
  r1.output[0:2] = r0.input[0:2]{via}
"""


def machine(*names):
    """Return two ranks under switches; each is half as wide as the one before it."""
    links = [
        Link(
            src=a,
            dst=b,
            bandwidth_gbytes_per_s=16.0 / 2**i,
            latency_us=float(i),
            name=f"{a}-{b}",
        )
        for i in range(len(names))
        for r in range(2)
        for a, b in ((r, 2 + i), (2 + i, r))
    ]
    return Machine(
        name="pair",
        kind="gpu",
        num_ranks=2,
        ranks_per_box=2,
        links=tuple(links),
        switches=tuple(Switch(name=name) for name in names),
        costs=Costs(),
    )


def planned(via, direction="push"):
    """Return the proved plan of a broadcast that goes a named way, or any."""
    program = verify(parse_program(PROGRAM.format(via=via)))
    schedule = Schedule.parse(f"{direction} bulk staged")
    return verify_plan(lower(program, schedule), program)


def took(via, direction, *names):
    """Return how long a broadcast over such switches is simulated to take."""
    plan = planned(via, direction)
    found = simulate(plan, machine(*names), nbytes=NBYTES, tile_bytes=NBYTES)
    return found.time_us


@pytest.mark.parametrize("direction", ["push", "pull"])
def test_a_named_way_is_charged(direction):
    """The wide switch is everybody's choice; who names the narrow one takes that."""
    wide = took("", direction, "wide", "narrow")

    assert took(" via wide", direction, "wide", "narrow") == pytest.approx(wide)
    assert took(" via narrow", direction, "wide", "narrow") > 1.5 * wide


def test_a_plan_with_named_ways_is_read_back():
    """And its digest is another."""
    plan = planned(" via narrow").value

    assert plan.ways == (Way(1, 0, 1, ("narrow",)),)
    assert parse_plan(str(plan)) == plan
    assert planned("").value.digest != plan.digest


def test_a_way_that_the_machine_does_not_have_is_refused():
    """With its stops, and where it ends."""
    with pytest.raises(TopologyError, match="0>narrow>1; pair has no link from 0"):
        took(" via narrow", "push", "wide")
