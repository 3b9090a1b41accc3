"""Graphene and JigSaw: beside the optimum, fair packing, and whole back-propagation.

    python benchmarks/graphene.py [DAGS] [SECONDS]

DAGS graphs of 20 tasks on one server, each beside CP-SAT's proved optimum (at most
SECONDS each; where it proves none, beside the best that it found, and its bound).
Then online traces against fair packing, and what partial back-propagation wins.
"""

import sys

import numpy as np

from stretto.network import dags, jigsaw
from stretto.network.dags import Dag


def optimum_ms(dag: Dag, seconds: float) -> tuple[float, float]:
    """Return the shortest schedule that CP-SAT found, and what none is shorter than."""
    from ortools.sat.python import cp_model as cp

    model = cp.CpModel()
    lengths = [round(task.ms) for task in dag.tasks]
    begins = [model.new_int_var(0, sum(lengths), "") for _ in lengths]
    length = model.new_int_var(0, sum(lengths), "")
    spans = []
    for i, task in enumerate(dag.tasks):
        spans.append(model.new_fixed_size_interval_var(begins[i], lengths[i], ""))
        model.add(length >= begins[i] + lengths[i])
        for j in task.after:
            model.add(begins[i] >= begins[j] + lengths[j])
    for r in range(len(dag.tasks[0].needs)):
        needs = [int(task.needs[r] * 1e6) for task in dag.tasks]
        model.add_cumulative(spans, needs, 1_000_000)
    model.minimize(length)
    solver = cp.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    solver.solve(model)
    return solver.objective_value, solver.best_objective_bound


def geomean(values: list[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def main() -> None:
    """Print three parts."""
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    ways: dict[str, list[float]] = {
        "graphene": [],
        "critical path": [],
        "CP-SAT's bound": [],
    }
    proofs = 0
    for dag in dags.generate_dags(many, tasks=20, seed=1):
        best, bound = optimum_ms(dag, seconds)
        proofs += best == bound
        ways["graphene"].append(dags.offline(dag, 1)[1] / best)
        ways["CP-SAT's bound"].append(bound / best)
        order = dags.critical_first(dag)
        ways["critical path"].append(dags.listed(dag, order, 1).length_ms / best)
    print(f"{many} graphs of 20 tasks; CP-SAT proved {proofs} optima in {seconds:g} s;")
    print("of the best that it found:")
    for name, ratios in ways.items():
        print(f"  {name:14} {geomean(ratios):.4f} of it (geomean), {max(ratios):.3f} at"
              f" most", flush=True)  # fmt: skip
    for load in (0.8, 1.0, 1.2):
        faster: dict[str, list[float]] = {by: [] for by in dags.KEYS}
        for seed in range(4):
            given = dags.loaded(50, servers=4, load=load, seed=seed)
            took = {by: dags.online(given, servers=4, by=by) for by in dags.KEYS}
            for by in dags.KEYS:
                faster[by] += [
                    1 - took[by][d.name] / took["fair"][d.name] for d in given
                ]
        said = ", ".join(f"{by} {np.median(f):.1%}" for by, f in faster.items())
        print(f"load {load}: half of the jobs are faster than fair by at least {said};"
              f" the worst under graphene {min(faster['graphene']):.1%}",
              flush=True)  # fmt: skip
    for workers in (2, 4, 8):
        won = []
        for seed in range(10):
            jobs = jigsaw.some_jobs(12, workers=workers, seed=seed)
            whole, partial = jigsaw.efficiency(jobs, ranks=16)
            won.append((partial / whole - 1, 1 - whole / partial))
        more, saved = np.mean(won, axis=0)
        print(f"jobs of {workers} workers, partial: {more:.1%} more iterations, "
              f"{saved:.1%} of the time of ranks saved")  # fmt: skip


if __name__ == "__main__":
    main()
