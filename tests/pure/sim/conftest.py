"""Small machines with round numbers, and plans to run on them."""

from types import SimpleNamespace

import pytest

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.program import algorithms
from stretto.topology import Costs, Link, Machine

RATE, ALPHA = 10.0, 1.0


def link(src, dst, *, rate=RATE, latency=ALPHA):
    return Link(
        src=src,
        dst=dst,
        bandwidth_gbytes_per_s=rate,
        latency_us=latency,
        name=f"{src}->{dst}",
    )


def full(num_ranks, **costs):
    """Return ranks that are all joined, each pair by a link of its own."""
    pairs = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b]
    return machine(num_ranks, [link(a, b) for a, b in pairs], **costs)


def ring(num_ranks, **costs):
    """Return ranks that are joined to the next one only, and back."""
    pairs = {(r, (r + 1) % num_ranks) for r in range(num_ranks)}
    pairs |= {(b, a) for a, b in pairs}
    return machine(num_ranks, [link(a, b) for a, b in sorted(pairs)], **costs)


def machine(num_ranks, links, **costs):
    return Machine(
        name="small",
        kind="gpu",
        num_ranks=num_ranks,
        links=tuple(links),
        ranks_per_box=num_ranks,
        costs=Costs(**costs),
    )


def proved(name, num_ranks, schedule="push bulk staged", *, in_place=False, **params):
    program = algorithms.get(name).build(num_ranks, **params)
    plan = lower(verify(program), Schedule.parse(schedule), in_place=in_place)
    return verify_plan(plan)


@pytest.fixture(scope="session")
def small():
    """Return the makers of small machines and proved plans."""
    return SimpleNamespace(
        full=full, link=link, machine=machine, proved=proved, ring=ring
    )
