"""In a sandbox every verb is answered by one rank alone, and at once."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import stretto.torch as st

SOON_S = 2.0
"""In which nobody is waited for: the group's time-out is ten times that."""


def ones(count):
    return torch.ones(count)


def together(n):
    with dist._coalescing_manager():
        dist.all_reduce(ones(3))
        dist.all_reduce(ones(n))


def started(*works):
    for work in works:
        work.wait()


def verbs(r, n):
    """Yield a name and a call of every verb; of those with a root also as another."""
    other, each = (r + 1) % n, [ones(5) for _ in range(n)]
    uneven = [1 + abs(q - r) for q in range(n)]
    for root in (r, other):
        yield f"reduce {root}", lambda root=root: dist.reduce(ones(5), root)
        yield f"broadcast {root}", lambda root=root: dist.broadcast(ones(5), root)
    for many in (5, 0):
        yield f"all_reduce {many}", lambda many=many: dist.all_reduce(ones(many))
    yield "started", lambda: started(dist.all_reduce(ones(5), async_op=True))
    yield "all_gather", lambda: dist.all_gather(each, ones(5))
    yield "all_gather uneven", lambda: dist.all_gather(parts(uneven), ones(1))
    yield "gather at the root", lambda: dist.gather(ones(5), each, dst=r)
    yield "gather", lambda: dist.gather(ones(5), None, dst=other)
    yield "scatter at the root", lambda: dist.scatter(ones(5), each, src=r)
    yield "scatter", lambda: dist.scatter(ones(5), None, src=other)
    yield "reduce_scatter", lambda: dist.reduce_scatter(ones(5), each)
    yield (
        "reduce_scatter uneven",
        lambda: dist.reduce_scatter(ones(1), parts(uneven)),
    )
    yield "all_to_all_single", lambda: dist.all_to_all_single(ones(2 * n), ones(2 * n))
    yield (
        "all_to_all_single uneven",
        lambda: dist.all_to_all_single(ones(sum(uneven)), ones(n), uneven, [1] * n),
    )
    yield "all_to_all uneven", lambda: dist.all_to_all(parts(uneven), parts([1] * n))
    yield "send", lambda: dist.send(ones(3), other)
    yield "recv", lambda: dist.recv(ones(3), other)
    yield "recv from any", lambda: dist.recv(ones(3))
    yield "tags", lambda: dist.send(ones(3), other, tag=7)
    yield (
        "isend and irecv",
        lambda: started(dist.isend(ones(3), other), dist.irecv(ones(3), other)),
    )
    yield "a batch", lambda: started(*dist.batch_isend_irecv(batch(other)))
    yield "barrier", dist.barrier
    yield "objects", lambda: dist.all_gather_object([None] * n, {"a": r})
    yield "objects to the root", lambda: dist.gather_object(1, [None] * n, dst=r)
    for root in (r, other):
        yield from objects(root, r, n)
    yield "coalesced", lambda: together(n)


def objects(root, r, n):
    """Yield every call that has torch read objects; what was there stays."""
    there = [{"a": "there" * 99}, None, torch.arange(3.0)]

    def same(found, known=there):
        assert repr(known) == repr(found), (known, found)

    def broadcast():
        mine = list(there)
        dist.broadcast_object_list(mine, root)
        same(mine)

    def scatter():
        mine = list(there)
        dist.scatter_object_list(mine, [there[0]] * n if root == r else None, root)
        same(mine)

    def send(**how):
        dist.send_object_list(there, (r + 1) % n, **how)

    def recv(**how):
        mine = list(there)
        dist.recv_object_list(mine, (r + 1) % n, **how)
        same(mine)

    yield f"objects from {root}", broadcast
    yield f"objects scattered by {root}", scatter
    yield (
        f"objects of all to {root}",
        lambda: dist.gather_object(1, [None] * n if root == r else None, dst=root),
    )
    for how in ({}, {"use_batch": True}):
        yield f"objects sent {how}", lambda how=how: send(**how)
        yield f"objects received {how}", lambda how=how: recv(**how)


def parts(counts):
    return [ones(count) for count in counts]


def batch(other):
    return [
        dist.P2POp(dist.isend, ones(3), other),
        dist.P2POp(dist.irecv, ones(3), other),
    ]


def check_every_verb_is_answered_alone_and_at_once(rank, n):
    """Rank 0 calls them, and nobody else does; what comes afterwards is real."""
    wrong = {}
    if rank == 0:
        for name, call in verbs(rank, n):
            begun = time.monotonic()
            try:
                with st.sandbox():
                    call()
            except Exception as e:
                wrong[name] = repr(e)
            if time.monotonic() - begun > SOON_S:
                wrong[name] = wrong.get(name, "late")
    x = torch.full((3,), float(rank))
    dist.all_reduce(x)
    assert (x == n * (n - 1) / 2).all()
    assert not wrong, wrong


def check_what_is_estimated_is_answered_too(rank, n):
    """Also what nobody can simulate, of which no time is said."""
    backend, wrong = dist.group.WORLD._get_backend("cuda"), {}
    if rank == 0:
        for name, call in verbs(rank, n):
            if name.startswith("objects"):  # their sizes would be numbers as they lie
                continue
            backend._start_time_estimate()
            try:
                call()
            except Exception as e:
                wrong[name] = repr(e)
            finally:
                us = backend._end_time_estimate()
            if name.startswith("all_reduce 5"):
                assert us > 0
    dist.barrier()
    assert not wrong, wrong
