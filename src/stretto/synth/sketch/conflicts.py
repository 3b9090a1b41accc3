"""Why a sketch cannot hold: the fewest rules that, together, leave some data no way.

Every rule has a literal, whether it holds. What a rank's data reach is closed: a hop
that none of the holding rules forbids takes them on. The solver keeps the target
outside with as few rules as can be, so each that it names is needed.
"""

from __future__ import annotations

from typing import Any

from stretto.synth.sketch.open_hops import OpenHops
from stretto.synth.solvers import cp_model, solved

__all__ = ["colliding"]


def colliding(ways: OpenHops, origin: int, target: int) -> tuple[str, ...]:
    """Return the fewest rules that keep the data of one rank from another."""
    kind = cp_model()
    cp: Any = kind.CpModel()
    n = ways.network.num_ranks
    holds = {name: cp.new_bool_var(name) for name in ways.rules}
    reached = [cp.new_bool_var("") for _ in range(n)]
    cp.add(reached[origin] == 1)
    cp.add(reached[target] == 0)
    for h in (h for r in range(n) for h in ways.hops(r)):
        stopped = [holds[name] for name in ways.broken(origin, h)]
        cp.add_bool_or([~reached[h.src], reached[h.dst], *stopped])
    cp.minimize(sum(holds.values()))
    solver = kind.CpSolver()
    solver.parameters.num_workers = 1
    status = solved(solver, cp)
    assert status == kind.OPTIMAL  # with every rule the target is out of reach
    return tuple(name for name, literal in holds.items() if solver.value(literal))
