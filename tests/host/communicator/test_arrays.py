"""What callers pass: tensors, buffers, other kinds of arrays; unequal parts; groups."""

import ml_dtypes
import numpy as np
import pytest

import stretto
from stretto import Communicator
from stretto.program.collectives import narrow, widen

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


def equal(got, want):
    """Return whether two arrays hold the same, shape and all."""
    return np.shape(got) == np.shape(want) and np.array_equal(got, want)


def kinds_of_arrays(comm):
    """Return what is wrong, by name, for every kind of argument."""
    n, r, wrong = comm.num_ranks, comm.rank, []
    total = n * (n + 1) // 2

    def check(name, good):
        wrong.extend([] if good else [name])

    raw = bytearray([r + 1] * 5)
    check("bytearray is returned", comm.all_reduce(raw) is raw)
    check("bytearray", bytes(raw) == bytes([total] * 5))
    floats = memoryview(np.full(4, r + 1.0))
    comm.all_reduce(floats)
    check("memoryview", floats.tolist() == [float(total)] * 4)
    swapped = np.full(3, r + 1, ">i4")
    comm.all_reduce(swapped)
    check("byte order", equal(swapped, [total] * 3) and swapped.dtype == ">i4")
    grid = np.full((3, 4), r + 1.0)
    comm.all_reduce(grid.T[1:, :2])
    check("a corner", grid[0, 0] == r + 1 and grid[1, 1] == total)
    scalar = np.array(r + 1.0)
    check("no axes", comm.all_gather(scalar).tolist() == [i + 1.0 for i in range(n)])
    check("shape of all_gather", comm.all_gather(grid).shape == (n, 3, 4))
    check("shape of scatter", comm.reduce_scatter(np.ones((2 * n, 3))).shape == (2, 3))
    bits = narrow(np.full(3, r + 1.0, np.float32), "bfloat16")
    comm.all_reduce(bits, dtype="bfloat16")
    check("raw bfloat16", equal(widen(bits, "bfloat16"), [total] * 3))
    halves = np.full((2, 4), r + 1.0, ml_dtypes.bfloat16)
    comm.all_reduce(halves[:, ::2])
    check("bfloat16", halves.astype(float).tolist() == [[total, r + 1.0] * 2] * 2)
    check("its gather", comm.all_gather(halves).dtype == ml_dtypes.bfloat16)
    slot = np.empty(3)
    for _ in range(3):  # the second time the call is recognised
        comm.scatter(np.arange(3.0 * n) if r == 0 else None, out=slot)
    check("scatter again", equal(slot, np.arange(3.0) + 3 * r))
    check("shapes of empty", comm.empty((), "int8").shape == ())
    check("a count", comm.empty(np.int64(3)).shape == (3,))
    room = comm.empty((2, 3), np.float32)
    room[...] = r + 1
    check("registered", equal(comm.all_reduce(room), np.full((2, 3), total)))
    tail = comm.empty(8, "int64")[3:]
    tail[...] = r
    check("a registered view", equal(comm.all_gather(tail)[:, 0], range(n)))
    return wrong


def tensors(comm):
    """Return what is wrong with CPU tensors; nothing when PyTorch is missing."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    n, r, wrong = comm.num_ranks, comm.rank, []
    total = n * (n + 1) // 2
    for turn in range(3):  # the second time the call is recognised
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            x = torch.full((4, 2), r + 1, dtype=dtype)
            if comm.all_reduce(x) is not x or (x != total).any():
                wrong.append(f"all_reduce {dtype} {turn}")
            both = comm.all_gather(x[:, 0])
            if not isinstance(both, torch.Tensor) or both.shape != (n, 4):
                wrong.append(f"all_gather {dtype} {turn}")
    weight = torch.ones(4, requires_grad=True)
    for _ in range(3):
        comm.all_reduce(weight, op="avg")
    if weight.tolist() != [1.0] * 4:
        wrong.append("a parameter")
    moved = torch.ones(4)
    for turn in range(4):
        moved.data = torch.full((4,), float(r + turn))  # other memory, same tensor
        comm.all_reduce(moved)
        if moved[0] != sum(q + turn for q in range(n)):
            wrong.append(f"replaced memory {turn}")
    return wrong + new_tensors(comm, torch)


def new_tensors(comm, torch):
    """Return which verbs are wrong on tensors that are new in every call."""
    n, r, wrong = comm.num_ranks, comm.rank, []
    after, before = (r + 1) % n, (r - 1) % n
    shift = tuple((q, (q + 1) % n) for q in range(n))
    room = comm.empty((4, n), "int32")
    for turn in range(4):  # from the second on, nothing is examined
        mine = torch.full((n,), 10 * r + turn, dtype=torch.int32)
        column = torch.arange(n, dtype=torch.int32) * 10 + turn
        every = column[:, None].expand(n, n)
        total = int(column.sum())
        whole = torch.zeros((n, n), dtype=torch.int32)
        whole[r] = mine
        comm.all_gather(whole[r], out=whole)
        lent = torch.from_numpy(room[turn])  # zero-copy: by address, it is registered
        lent.copy_(mine)
        counts = tuple(q % 2 * n for q in range(n))  # some have nothing
        parts = comm.all_gather_v(mine[: counts[r]].clone(), counts)
        got = {
            "reduce_scatter": (comm.reduce_scatter(mine), [total]),
            "all_to_all": (comm.all_to_all(mine.clone()), column.tolist()),
            "broadcast": (comm.broadcast(mine.clone(), root=n - 1)[:1], [column[-1]]),
            "permute": (comm.permute(mine.clone(), shift)[:1], [column[before]]),
            "all_gather": (comm.all_gather(mine.clone()), every.tolist()),
            "all_gather in place": (whole, every.tolist()),
            "all_gather_v": (parts, [c for q in range(1, n, 2) for c in every[q]]),
            "registered": (comm.all_reduce(lent), [total] * n),
            "out": (comm.all_reduce(mine.clone(), out=mine.clone()), [total] * n),
        }
        root = comm.reduce(mine.clone(), root=0)
        got["reduce"] = ([] if root is None else root, [total] * n if r == 0 else [])
        taken = torch.zeros(n, dtype=torch.int32)
        if r % 2:
            comm.recv(taken, before)
            comm.send(mine.clone(), after)
        else:
            comm.send(mine.clone(), after)
            comm.recv(taken, before)
        if n % 2 == 0:
            got["recv"] = (taken, [column[before]] * n)
        wrong += [
            f"{name} {turn}: {one} for {want}"
            for name, (one, want) in got.items()
            if not equal(np.asarray(one), np.asarray(want))
        ]
    return wrong


def unequal_parts(comm):
    """Return what is wrong with the verbs whose parts differ."""
    n, r, wrong = comm.num_ranks, comm.rank, []
    counts = [(7 * q + 3) % 5 for q in range(n)]
    ends = np.cumsum([0, *counts])

    def check(name, got, want):
        if not equal(got, want):
            wrong.append(f"rank {r}: {name}: {got} for {want}")

    mine = np.arange(counts[r], dtype=np.float64) + 10 * r
    all_of = np.concatenate(
        [np.arange(c, dtype=np.float64) + 10 * q for q, c in enumerate(counts)]
    )
    check("all_gather_v", comm.all_gather_v(mine, counts), all_of)
    check("all_gather_v, asking", comm.all_gather_v(mine), all_of)
    place = np.zeros(all_of.size)
    place[ends[r] : ends[r + 1]] = mine
    comm.all_gather_v(place[ends[r] : ends[r + 1]], counts, out=place)
    check("all_gather_v in place", place, all_of)
    got = comm.gather_v(mine, root=n - 1)
    check("gather_v", got, all_of if r == n - 1 else None)
    own = slice(ends[r], ends[r + 1])
    summed = comm.reduce_scatter_v(all_of, counts)
    check("reduce_scatter_v", summed, all_of[own] * n)
    piece = comm.scatter_v(all_of if r == 0 else None, counts, dtype="float64")
    check("scatter_v", piece, all_of[own])
    sends = [(r + q) % 3 for q in range(n)]
    source = np.concatenate([np.full(c, 10.0 * r + q) for q, c in enumerate(sends)])
    want = np.concatenate([np.full((q + r) % 3, 10.0 * q + r) for q in range(n)])
    check("all_to_all_v", comm.all_to_all_v(source, sends), want)
    table = [[(a + b) % 3 for b in range(n)] for a in range(n)]
    check("all_to_all_v, told", comm.all_to_all_v(source, table), want)
    return wrong


def known_calls(comm):
    """Return what is wrong when calls are repeated, on the same arrays and on views."""
    n, r, wrong = comm.num_ranks, comm.rank, []
    counts = tuple(q + 1 for q in range(n))
    matrix = [[q + 1 for q in range(n)] for _ in range(n)]
    x, whole = np.zeros(r + 1), np.zeros(sum(counts))
    out, mine, one = np.zeros(sum(counts)), np.zeros(r + 1), np.zeros(2)
    swapped = np.zeros(n * (r + 1))
    ends = np.cumsum([0, *counts])
    after, before = (r + 1) % n, (r - 1) % n

    def check(name, turn, got, want):
        if not equal(got, want):
            wrong.append(f"rank {r}, turn {turn}: {name}: {got} for {want}")

    for turn in range(6):
        look = (lambda a: a) if turn % 2 else (lambda a: a[:])  # same, or new objects
        x[:] = 10 * turn + r
        whole[:] = turn + np.arange(whole.size)
        own = whole[ends[r] : ends[r + 1]]
        all_of = np.repeat([10.0 * turn + q for q in range(n)], counts)
        check("all_gather_v", turn, comm.all_gather_v(look(x), counts), all_of)
        comm.all_gather_v(look(x), list(counts), out=look(out))
        check("all_gather_v, out", turn, out, all_of)
        check("all_gather_v, asking", turn, comm.all_gather_v(look(x)), all_of)
        got = comm.gather_v(look(x), counts, root=1)
        check("gather_v", turn, got, all_of if r == 1 else None)
        comm.reduce_scatter_v(look(whole), counts, out=look(mine))
        check("reduce_scatter_v", turn, mine, own * n)
        given = look(whole) if r == 0 else None
        check("scatter_v", turn, comm.scatter_v(given, counts, dtype="float64"), own)
        want = np.concatenate([own] * n)
        comm.all_to_all_v(look(whole), matrix, out=look(swapped))
        check("all_to_all_v", turn, swapped, want)
        check("and asking", turn, comm.all_to_all_v(look(whole), counts), want)
        moved = comm.permute(look(whole), ((0, 1),))
        check("permute", turn, moved, whole if r == 1 else np.zeros(whole.size))
        one[:] = turn + r
        if r == 0:
            comm.send(look(one), after)
        check("recv", turn, comm.recv(look(one), before), [turn, turn])
        if r != 0:
            comm.send(look(one), after)
    return wrong


def calls_beside_others(comm):
    """Return the results of started calls, a split, and transfers between two."""
    n, r = comm.num_ranks, comm.rank
    arrays = [np.full(3, float(r + i)) for i in range(5)]
    works = [comm.all_reduce_async(a) for a in arrays]
    blocking = comm.all_gather(np.array([r])).ravel().tolist()
    started = [float(w.wait()[0]) for w in works]
    after, before = (r + 1) % n, (r - 1) % n
    sent = comm.send_async(np.full(2, r), to=after)
    received = comm.recv(np.empty(2, int), source=before).tolist()
    sent.wait()
    half = comm.split(r % 2, key=-r)
    members = half.all_gather(np.array([r])).ravel().tolist()
    nobody = comm.split(None if r else 0)
    pair = half.num_ranks, half.rank, nobody is not None
    half.close()
    if nobody is not None:
        nobody.close()
    return blocking, started, received, members, pair


def closed_at_once(comm):
    """Return what calls gave that were started, and not begun, before the close."""
    n, r = comm.num_ranks, comm.rank
    sums = [comm.all_reduce_async(np.full(100 + k, r + 1.0)) for k in range(20)]
    after, before = (r + 1) % n, (r - 1) % n
    for k in range(5):
        comm.send_async(np.full(10 + k, float(r)), to=after)
    come = [comm.recv_async(np.empty(10 + k), source=before) for k in range(5)]
    comm.close()
    return [float(w.wait(30)[-1]) for w in sums], [float(w.wait(30)[0]) for w in come]


def every_verb_started(comm):
    """Return the verbs whose started form gives something else, and what was tried."""
    n, r = comm.num_ranks, comm.rank
    counts = tuple(range(1, n + 1))
    x, mine = np.arange(4.0 * n) + r, np.arange(counts[r]) * 10 + r
    whole = np.arange(sum(counts)) + 100 * r
    here = {"dtype": "int64"} if r else {}
    calls = {
        **dict.fromkeys(("reduce", "broadcast", "all_gather", "gather"), (x,)),
        **dict.fromkeys(
            ("all_reduce", "reduce_scatter", "all_to_all", "scatter"), (x,)
        ),
        "permute": (x, ((0, 1), (1, 0))),
        "barrier": (),
        **dict.fromkeys(("all_gather_v", "gather_v"), (mine, counts)),
        **dict.fromkeys(("reduce_scatter_v", "all_to_all_v"), (whole, counts)),
        "scatter_v": (None if r else whole, counts),
    }
    wrong = []
    for verb, given in calls.items():
        how = {"scatter_v": here, "scatter": {"out": np.empty(4)}}.get(verb, {})
        plain, started = (
            [a.copy() if isinstance(a, np.ndarray) else a for a in given]
            for _ in range(2)
        )
        want = np.copy(getattr(comm, verb)(*plain, **how))
        got = getattr(comm, f"{verb}_async")(*started, **how).wait()
        if not np.array_equal(want, np.asarray(got)):
            wrong.append(verb)
    return wrong, sorted(calls)


def registered_in_place(comm):
    """Return the ends of a gathered and a scattered array of one's own memory."""
    n, r, found = comm.num_ranks, comm.rank, []
    for count in (16, 1 << 16):
        whole = comm.empty((n, count))
        whole[r] = r + 1
        comm.all_gather(whole[r], out=whole)
        found.append((whole[:, 0].tolist(), whole[:, -1].tolist()))
        whole[...] = r + 1
        comm.reduce_scatter(whole, out=whole[r])
        found.append((float(whole[r, 0]), float(whole[r, -1])))
    return found


def mixed_in_place(comm):
    """Return results where only rank 0 is in place, and again the other way round."""
    found = []
    for turn in range(4):
        x = np.full(100, comm.rank + 1.0)
        out = x if (turn + comm.rank) % 2 else np.empty(100)
        comm.all_reduce(x, out=out)
        found.append(float(out[99]))
    return found


def one_by_one(comm, *parts):
    """Return what each of several parts finds; starting ranks takes a second."""
    return [part(comm) for part in parts]


def test_nothing_is_wrong_on_three_ranks():
    """Whatever kind of array comes, known or new, and however parts differ."""
    parts = kinds_of_arrays, known_calls, unequal_parts

    assert [[[]] * 3] * 3 == stretto.spawn(one_by_one, *parts, num_ranks=3)


def test_tensors_are_arrays():
    """CPU tensors of PyTorch work in place and out of it, and come back as tensors."""
    pytest.importorskip("torch")

    assert [[]] * 2 == stretto.spawn(tensors, num_ranks=2)


def test_every_verb_can_be_started():
    """`<verb>_async(...).wait()` gives what `<verb>(...)` does."""
    verbs = {n.removesuffix("_async") for n in dir(Communicator) if n[-6:] == "_async"}

    for wrong, tried in stretto.spawn(every_verb_started, num_ranks=3):
        assert [] == wrong
        assert verbs - {"send", "recv"} == set(tried)


def test_started_calls_keep_their_order():
    """Works, a blocking call between them, channels and splits do not disturb."""
    results = stretto.spawn(calls_beside_others, num_ranks=4)

    for rank, (blocking, started, received, members, pair) in enumerate(results):
        assert [0, 1, 2, 3] == blocking
        assert [6.0 + 4 * i for i in range(5)] == started
        assert [(rank - 1) % 4] * 2 == received
        assert [rank % 2 + 2, rank % 2] == members
        assert (2, 1 - rank // 2, rank == 0) == pair


def test_started_calls_are_ended_by_a_close_that_comes_at_once():
    """Most have not begun then; each is of another kind, which is no known call."""
    found = stretto.spawn(closed_at_once, num_ranks=2)

    assert [([3.0] * 20, [1.0] * 5), ([3.0] * 20, [0.0] * 5)] == found


def test_in_place_is_a_rank_s_own_affair():
    """Own parts lie elsewhere on every rank; some ranks are in place, others not."""
    gathered, summed = ([1.0, 2.0], [1.0, 2.0]), (3.0, 3.0)

    found = stretto.spawn(one_by_one, registered_in_place, mixed_in_place, num_ranks=2)

    for registered, mixed in found:
        assert [gathered, summed] * 2 == registered
        assert [3.0] * 4 == mixed
