"""How a plan over hosts is closed: one message from each other host to each rank."""

from dataclasses import replace

import pytest

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule, Signal
from stretto.compiler.verify import verify, verify_plan
from stretto.executors.sim import simulate
from stretto.program import algorithms
from stretto.topology import assumed_hosts


def proved(name, hosts, **params):
    """Return a plan over hosts that was proved."""
    one = algorithms.get(name)
    params |= {"hosts": hosts} if one.knows_hosts else {}
    program = verify(one.build(len(hosts), **params))
    words = Schedule.parse("push bulk staged")
    return verify_plan(lower(program, words, in_place=True, hosts=hosts), program)


def messages(plan, hosts):
    """Return how many signals cross from one host to another."""
    return sum(
        isinstance(step, Signal) and hosts[rank] != hosts[step.rank]
        for rank, lanes in enumerate(plan.value.ranks)
        for steps in lanes
        for step in steps
    )


@pytest.mark.parametrize(
    ("hosts", "want"),
    [((0, 0, 1, 1), 4), ((0, 0, 1), 3), ((0, 1), 2), ((0, 0, 1, 1, 2, 2), 12)],
)
def test_a_barrier_sends_one_message_from_each_other_host_to_each_rank(hosts, want):
    """Not one for each pair of ranks."""
    assert want == messages(proved("barrier/closed", hosts), hosts)


def test_what_the_data_have_said_is_not_said_again():
    """A broadcast's data tell the far host; only it has to answer."""
    hosts = (0, 0, 1, 1)
    assert 4 == messages(proved("broadcast/rails", hosts, root=0), hosts)


def test_a_message_costs_both_ends_something():
    """Two ranks of two hosts send one each, and await one each."""
    hosts = (0, 1)
    plan, machine = proved("barrier/closed", hosts), assumed_hosts("cpu", hosts)
    free = replace(machine, costs=replace(machine.costs, message_us=0.0))
    dear, cheap = (simulate(plan, one, nbytes=8).time_us for one in (machine, free))

    assert 2 * machine.costs.message_us == pytest.approx(dear - cheap)
