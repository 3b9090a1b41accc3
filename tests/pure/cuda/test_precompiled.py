"""What is compiled ahead of the calls is what sessions load when they come."""

from __future__ import annotations

import pytest
from cuda_fakes import on_ranks

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors import Call
from stretto.executors.cuda import warm
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.program import algorithms, collectives
from stretto.program.collectives import Operator, Shape, storage
from stretto.runtime.calls.precompile import usual_calls
from stretto.runtime.choice.plans import frozen, proved_plan
from stretto.runtime.choice.question import STAGED, Question, dtype_class
from stretto.runtime.choice.selector import Selector

SIZES = (8, 4 << 10, 1 << 20, 5 << 20, 25 << 20, 100 << 20, 250 << 20)
"""Of scalars, activations, and buckets of DDP: the first, the others, parameters."""
KINDS = (
    ("all_reduce", "float32", Operator.SUM),
    ("broadcast", "float32", Operator.SUM),
    ("all_gather", "bfloat16", Operator.SUM),
    ("reduce_scatter", "float32", Operator.AVG),
    ("all_to_all", "bfloat16", Operator.SUM),
)


def asked(num_ranks):
    """Yield usual calls, and the plans that choice serves them by."""
    selector = Selector("cuda")
    for name, dtype, op in KINDS:
        kind = collectives.get(name)
        params = frozen({"root": 0} if kind.rooted else {})
        parts = kind.num_parts(Shape(num_ranks=num_ranks, params=dict(params)))
        for nbytes in SIZES:
            found = selector.choose(
                Question(
                    executor="cuda",
                    collective=name,
                    num_ranks=num_ranks,
                    nbytes=nbytes,
                    memory=STAGED,
                    in_place=True,
                    params=params,
                    dtypes=dtype_class(dtype),
                )
            )
            how = found.algorithm, num_ranks, params, found.schedule
            count = max(1, nbytes // storage(dtype).itemsize // parts)
            call = Call(dtype=dtype, op=op, counts=(count,) * parts)
            yield f"{name} of {nbytes} bytes", proved_plan(*how, in_place=True), call


def loaded_by_sessions(fake, num_ranks, calls):
    """Return the kernels that each rank's session loads, by what for."""

    def work(group):
        session, found = CudaSession(group), {}
        for name, plan, call in calls:
            here = found[name] = []

            def load(kernel, here=here):
                here.append(kernel.digest)
                return Loaded(None, 7, kernel)

            session.load_kernel = load
            session.prepare(plan, call)
        group.exchange({})
        session.close()
        return found

    return on_ranks(fake, num_ranks, work)


def test_usual_calls_find_their_kernels_compiled(fake):
    """Calls of several tiles, too: their kernels close every epoch."""
    ahead = [
        {name for plan, call in usual_calls(2)
         for name in warm(plan, call, rank=rank, arch=(9, 0))}
        for rank in range(2)
    ]  # fmt: skip
    found = loaded_by_sessions(fake, 2, list(asked(2)))

    missed = {
        f"rank {rank}: {name}"
        for rank in range(2)
        for name, kernels in found[rank].items()
        if not set(kernels) <= ahead[rank]
    }
    assert all(kernels for of in found for kernels in of.values())
    assert set() == missed


@pytest.mark.parametrize("nbytes", [4 << 10, 64 << 20])
@pytest.mark.parametrize(
    ("algorithm", "schedule"),
    [
        ("all_reduce/two_shot", "push packets staged"),
        ("all_reduce/two_shot", "pull bulk staged blocks=4"),
        ("all_reduce/two_shot", "pull bulk zero_copy copy:engine+push"),
        ("all_gather/one_shot", "push engine zero_copy"),
    ],
)
def test_whatever_runs_a_plan_its_kernels_are_known_without_a_session(
    fake, algorithm, schedule, nbytes
):
    """One kernel, one and copies, or copies between barriers."""
    program = verify(algorithms.get(algorithm).build(2))
    plan = verify_plan(lower(program, Schedule.parse(schedule)))
    parts = 1 if algorithm.startswith("all_reduce") else 2
    call = Call(dtype="float32", counts=(nbytes // 4 // parts,) * parts)
    (mine, _) = loaded_by_sessions(fake, 2, [("one", plan, call)])

    assert mine["one"]
    assert set(mine["one"]) == set(warm(plan, call, rank=0, arch=(9, 0)))
