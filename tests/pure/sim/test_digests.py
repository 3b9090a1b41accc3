"""Simulated times to the last bit: what the links do to every shipped algorithm."""

import hashlib
import itertools

import pytest
from tests.nightly import nightly

from stretto import topology
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import StrettoError
from stretto.executors.sim import simulate
from stretto.program import algorithms

MACHINES = (("cpux8", 8), ("dgx1", 8), ("torus4x4", 16), ("dgx_h100x2", 8))
HOW = ("packets", "bulk", "pull bulk")
NBYTES = 12_000_068
"""Not a round number: parts differ, and so do the ends of their transfers."""


def runs(only):
    """Yield a line for every algorithm on a machine, the schedules in turn."""
    pairs = itertools.product(algorithms.names(), MACHINES)
    for i, (name, (machine, ranks)) in enumerate(pairs):
        if machine != only or algorithms.get(name).refuses(ranks):
            continue
        schedule = HOW[(i + i // len(MACHINES)) % len(HOW)]
        try:
            proved = verify(algorithms.get(name).build(ranks))
            plan = verify_plan(lower(proved, Schedule.parse(schedule)))
            run = simulate(plan, topology.load(machine), nbytes=NBYTES)
        except StrettoError as e:
            yield f"{type(e).__name__} {name} {machine} {schedule}"
            continue
        facts = run.time_us.hex(), run.num_transfers, [
            (load.name, load.nbytes.hex(), load.share.hex()) for load in run.links
        ]  # fmt: skip
        digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
        yield f"{digest} {run.time_us:.6f} {name} {machine} {schedule}"


@pytest.mark.parametrize(
    "machine", nightly(["cpux8", "dgx1", "torus4x4", "dgx_h100x2"], 4)
)
def test_simulated_times_are_as_recorded_to_the_last_bit(golden, machine):
    """A change of how links are shared that moves any time shows which plans moved."""
    golden("\n".join(runs(machine)))
