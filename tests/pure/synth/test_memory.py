"""A search fits into half a gigabyte, whichever of its ways it is on."""

from __future__ import annotations

import subprocess
import sys

import pytest

_MODELLED = """
import resource
from stretto import topology
from stretto.synth import from_machine
from stretto.synth.bounds.bound import bound
from stretto.synth.direct.greedy import greedy
from stretto.synth.budget import Budget
from stretto.synth.exact.joint import solve_joint
from stretto.synth.schedules.schedule import Demand
from stretto.synth.network.symmetry import trivial
from stretto.synth.solvers import cp_model

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

cp_model()
network = from_machine(topology.load("dgx_a100x2"))
demand = Demand(collective="all_gather", network=network, nbytes=65536)
before = peak()
solve_joint(
    demand,
    trivial(network),
    bound("all_gather", network),
    budget=Budget(seconds=SECONDS),
    hint=greedy(demand, trivial(network), seed=0),
)
print(peak() - before)
"""


@pytest.mark.slow
def test_the_joint_model_is_held_once():
    """Many searches in turn would each hold the model: hundreds of megabytes."""
    script = _MODELLED.replace("SECONDS", "1.0")
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert float(ran.stdout) < 100
