"""What is refused leaves the group working: every public function, in bad hands."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist

import stretto
import stretto.torch as st

NO_CALLS = {
    *("Options", "StrettoGroup", "barrier", "communicator"),
    *("fuse", "make_default", "named"),
}
"""They meet nobody, or take a group and nothing else."""
REFUSED = (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""By PyTorch, or Python; what stretto refuses it says in errors of its own."""
SPARSE = torch.eye(2).to_sparse()
ODD = object()


def memory():
    """Return calls that allocate or register: all ranks refuse them alike."""
    model = torch.nn.Linear(2, 2)
    return {
        "empty": [
            lambda: st.empty(4, device="tpu"),
            lambda: st.empty(4, device="meta"),
            lambda: st.empty(4, device=ODD),
            lambda: st.empty(4, dtype="float33"),
            lambda: st.empty(4, dtype=float),
            lambda: st.empty(-1),
            lambda: st.empty(2, -1),
            lambda: st.empty(1.5),
            lambda: st.empty("4"),
            lambda: st.empty([[1, 2]]),
            lambda: st.empty(1 << 60),
            lambda: st.empty(1 << 40, 1 << 40),
            lambda: st.empty(4, group="nobody"),
        ],
        "register": [
            lambda: st.register(None),
            lambda: st.register("x"),
            lambda: st.register(SPARSE),
            lambda: st.register(torch.empty(4, device="meta")),
        ],
        "deregister": [
            lambda: st.deregister(None),
            lambda: st.deregister(torch.empty(4, device="meta")),
        ],
        "pool": [lambda: st.pool(-1)],
        "suspend": [lambda: st.suspend("nobody"), lambda: st.suspend(ODD)],
        "resume": [lambda: st.resume(), lambda: st.resume(ODD)],
        "sandbox": [
            lambda: st.sandbox(ODD),
            lambda: st.sandbox("x"),
            lambda: st.sandbox(dist.group.WORLD),
            lambda: st.sandbox([ODD]),
            lambda: st.sandbox([dist.group.WORLD, None]),
        ],
        "place_buffers": [
            lambda: st.place_buffers(None),
            lambda: st.place_buffers(model),
        ],
    } | ({} if torch.cuda.is_available() else {"pools": [lambda: st.pool(1 << 20)]})


def together():
    """Return calls that ranks refuse when they have heard one another."""
    comm = st.communicator()
    found = [
        lambda: st.empty(1 << 45, dtype=torch.uint8),
        lambda: comm.empty(1 << 45, "uint8"),
    ]
    if not torch.cuda.is_available():
        found += [
            lambda: st.empty(4, device="cuda"),
            lambda: st.empty(4, device="cuda:1"),
            lambda: comm.empty(4, device="cuda"),
        ]
    return found


def by_torch(rank, n):
    """Return calls of torch.distributed that are refused by each rank alone."""
    x, meta = torch.ones(2 * n), torch.empty(4, device="meta")
    whole = torch.ones(2 * n, dtype=torch.int32)
    return [
        lambda: dist.all_reduce(meta),
        lambda: dist.all_reduce(whole, dist.ReduceOp.AVG),
        lambda: dist.all_reduce(x, dist.ReduceOp.BAND),
        lambda: dist.broadcast(x, n + 7),
        lambda: dist.all_gather_into_tensor(whole, torch.ones(2)),
        lambda: dist.all_gather_into_tensor(torch.empty(3), x),
        lambda: dist.all_gather([x] * (n + 1), x),
        lambda: dist.reduce_scatter_tensor(torch.empty(2 * n + 1), x),
        lambda: dist.all_to_all_single(torch.empty(2 * n), x, [9] * n, [2] * n),
        lambda: dist.all_to_all_single(torch.empty(2 * n + 1), x),
        lambda: dist.send(meta, (rank + 1) % n),
        lambda: dist.all_reduce(meta, async_op=True).wait(),
        lambda: dist.group.WORLD.reduce([x, x]),
        lambda: st.communicator().all_reduce(ODD),
        lambda: st.communicator().all_reduce(x, algorithm="nothing"),
        lambda: st.communicator().empty(4, device="tpu"),
        lambda: st.communicator().empty(4, "float33"),
        lambda: st.Options(algorithms={"all_reduce": "nothing/known"}),
    ]


def operators():
    """Yield names of operators, and calls that they refuse."""
    x = torch.ones(4)
    extra = {
        "permute": ([(0, 99)],), "scatter": (x,), "all_gather_v": ([4],),
        "reduce_scatter_v": ([4],), "all_gather_matmul": (ODD,),
        "matmul_reduce_scatter": (ODD,), "matmul_all_reduce": (ODD,),
        "partial_matmul": (ODD,), "all_reduce_rmsnorm": (ODD, ODD),
        "all_reduce_rmsnorm_": (ODD, ODD), "all_reduce_rmsnorm_fp8": (ODD, ODD),
    }  # fmt: skip
    for name in sorted(set(st.__all__) - NO_CALLS - set(memory())):
        call, more = getattr(st, name), extra.get(name, ())
        for bad in (None, ODD, SPARSE):
            yield name, lambda call=call, bad=bad, more=more: call(bad, *more)
        yield name, lambda call=call, more=more: call(x, *more, group="nobody")


def refused(said, call, kind=stretto.StrettoError):
    """Raise unless a call is refused, by such errors."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{said} was taken")


def works(said, n):
    """Raise unless the default group works."""
    x = torch.ones(3)
    try:
        dist.all_reduce(x)
        st.communicator().barrier()
    except stretto.StrettoError as e:
        raise AssertionError(f"{said} broke the group: {e}") from e
    assert [n] * 3 == x.tolist(), said


def check_bad_arguments_never_break_a_group(rank, n):
    for name, calls in memory().items():
        for i, call in enumerate(calls):
            refused(f"bad call {i} of {name}", call)
            works(f"bad call {i} of {name}", n)
    for i, call in enumerate(together()):
        refused(f"call {i} that all refuse", call)
        works(f"call {i} that all refuse", n)
    for i, call in enumerate(by_torch(rank, n)):
        refused(f"bad call {i} of torch.distributed", call)
        works(f"bad call {i} of torch.distributed", n)
    for name, call in operators():
        refused(name, call, (*REFUSED, stretto.StrettoError))
        works(name, n)


def check_what_one_rank_alone_is_refused_breaks_nothing(rank, n):
    """Nobody else hears of it: arguments are looked at before anybody is met."""
    alone = [call for calls in memory().values() for call in calls]
    alone += [*by_torch(rank, n), *(call for _, call in operators())]
    for i, call in enumerate(alone):
        if rank == i % n:
            refused(f"bad call {i}", call, (*REFUSED, stretto.StrettoError))
    works("what one rank was refused", n)


def check_the_others_do_not_suffer_from_a_wrong_list_of_the_root(rank, n):
    """Of gather nobody else can know: the root raises, and the group stays whole."""
    x, root = torch.full((4,), float(rank)), n - 1
    wrong = [
        [torch.empty(4)] * (n - 1),
        [torch.empty(4)] * (n + 1),
        [torch.empty(4)] * (n - 1) + [torch.empty(3)],
        [torch.empty(5)] * n,
        [torch.empty(0)] * n,
    ]
    for started in (False, True):
        for outs in wrong:
            gather = partial(gathered, x, outs if rank == root else None, root, started)
            if rank == root:
                with pytest.raises(RuntimeError, match="gather"):
                    gather()
            else:
                gather()
    total = torch.ones(2)
    dist.all_reduce(total)
    assert total.tolist() == [n, n]
    right = [torch.empty(4) for _ in range(n)]
    dist.gather(x, right if rank == root else None, dst=root)
    assert rank != root or [q[0] for q in right] == [*range(n)]


def gathered(x, outs, root, started):
    work = dist.gather(x, outs, dst=root, async_op=started)
    if started:
        work.wait()
