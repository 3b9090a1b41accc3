"""Calls leave no trace on tensors but what they write: FSDP resizes storages, say."""

from __future__ import annotations

import time
import weakref

import torch
import torch.distributed as dist

import stretto.torch as st

ROWS = 6
"""Two ranks divide them, and three."""


def calls_on(x, rank, n):
    """Return calls by name: what each only reads, what it writes, and itself."""

    def new(rows=ROWS):
        return x.detach().new_zeros(rows, 3)

    def many():
        return [new() for _ in range(n)]

    whole, part, parts, source = new(ROWS * n), new(ROWS // n), many(), many()
    out, at_root = new(), rank == 0
    comm = st.communicator()
    moves = {
        "broadcast": ([], [x], lambda a: dist.broadcast(x, 0, async_op=a)),
        "all_gather": ([x], parts, lambda a: dist.all_gather(parts, x, async_op=a)),
        "all_gather_into_tensor": (
            [x], [whole], lambda a: dist.all_gather_into_tensor(whole, x, async_op=a)
        ),
        "gather": (
            [x], parts,
            lambda a: dist.gather(x, parts if at_root else None, 0, async_op=a),
        ),
        "scatter": (
            source, [out],
            lambda a: dist.scatter(out, source if at_root else None, 0, async_op=a),
        ),
        "all_to_all": (
            source, parts, lambda a: dist.all_to_all(parts, source, async_op=a)
        ),
        "all_to_all_single": (
            [x], [out], lambda a: dist.all_to_all_single(out, x, async_op=a)
        ),
        "of the communicator": ([x], [whole], lambda _: comm.all_gather(x, out=whole)),
        "sent": (
            [x], [out],
            lambda _: dist.batch_isend_irecv([
                dist.P2POp(dist.isend, x.detach(), (rank + 1) % n),
                dist.P2POp(dist.irecv, out, (rank - 1) % n),
            ]),
        ),
    }  # fmt: skip
    if x.dtype is torch.bool or x.dtype.itemsize == 1:
        return moves
    return moves | {
        "all_reduce": ([], [x], lambda a: dist.all_reduce(x, async_op=a)),
        "reduce": ([], [x], lambda a: dist.reduce(x, 0, async_op=a)),
        "reduce_scatter": (
            source, [out], lambda a: dist.reduce_scatter(out, source, async_op=a)
        ),
        "reduce_scatter_tensor": (
            [x], [part], lambda a: dist.reduce_scatter_tensor(part, x, async_op=a)
        ),
        "an operator": (
            [x], [out], lambda _: torch.ops.stretto.all_reduce_out(x, out, "sum", "")
        ),
        "a function": ([x], [], lambda _: st.all_reduce(x.detach())),
    }  # fmt: skip


def inputs():
    """Yield tensors of all kinds: what they are, and how one is made."""
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool):
        yield str(dtype), lambda dtype=dtype: torch.ones(ROWS, 3).to(dtype)
    yield "a part of another", lambda: torch.ones(2 * ROWS, 3)[ROWS:]
    yield "strided", lambda: torch.ones(ROWS, 6)[:, ::2]
    yield "a parameter", lambda: torch.nn.Parameter(torch.ones(ROWS, 3))


def state(tensor):
    """Return what a call is to leave as it was."""
    storage = tensor.untyped_storage()
    return {
        "resizable": storage.resizable(),
        "place": (storage.data_ptr(), storage.nbytes(), tensor.stride()),
        "gradient": (tensor.requires_grad, tensor.is_leaf, tensor.grad_fn),
        "base": tensor._base,
    }


def users(tensor):
    """Return how many tensors and others hold a storage."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def ended(work):
    for one in work if isinstance(work, list) else [work]:
        if isinstance(one, dist.Work):
            one.wait()


def check_calls_leave_no_trace_on_tensors(rank, n):
    for kind, make in inputs():
        for name in calls_on(make(), rank, n):
            for started in (False, True):
                x = make()
                reads, writes, call = calls_on(x, rank, n)[name]
                before = [(state(t), users(t)) for t in (*reads, *writes)]
                versions = [t._version for t in reads]

                ended(call(started))

                said = f"{name} of {kind}, started={started}"
                assert versions == [t._version for t in reads], said
                until = time.monotonic() + 5
                for tensor, (was, held) in zip((*reads, *writes), before, strict=True):
                    assert was == state(tensor), said
                    while users(tensor) > held:  # a thread may just have run it
                        assert time.monotonic() < until, f"{said}: still held"
                        time.sleep(1e-3)


def check_tensors_are_let_go_when_their_call_has_ended(rank, n):
    """Neither known calls nor started ones keep what they were made on."""
    for name in calls_on(torch.ones(ROWS, 3), rank, n):
        gone = []
        for turn in range(6):  # the later ones are known
            x = torch.ones(ROWS, 3)
            reads, writes, call = calls_on(x, rank, n)[name]
            ended(call(turn % 2 == 1))
            gone += [weakref.ref(t) for t in (x, *reads, *writes)]
            del x, reads, writes, call
        until = time.monotonic() + 5
        while any(ref() is not None for ref in gone):
            assert time.monotonic() < until, f"{name}: still held"
            time.sleep(1e-3)


def check_storages_are_resized_after_calls(rank, n):
    """As FSDP does between steps, with parameters that were summed."""
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(ROWS, 3, dtype=dtype)
        for turn in range(4):
            x.fill_(turn)
            ended(dist.all_reduce(x, async_op=turn % 2 == 1))
            assert x.eq(turn * n).all()
            nbytes = x.untyped_storage().nbytes()
            x.untyped_storage().resize_(0)
            x.untyped_storage().resize_(nbytes)
