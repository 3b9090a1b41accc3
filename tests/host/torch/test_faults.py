"""Late, dead, forked and mistaken ranks: who is named, when, and what works after."""

from __future__ import annotations

import gc
import inspect
import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from tests.soon import soon
from tests.waiting import Flag, until

import stretto

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import stretto.torch  # noqa: E402


def begin(comm, store, timeout_s=30.0):
    torch.set_num_threads(1)
    dist.init_process_group(
        "stretto",
        init_method=f"file://{store}",
        rank=comm.rank,
        world_size=comm.num_ranks,
        timeout=timedelta(seconds=timeout_s),
    )


def caught(call):
    """Return which classes, which text, and after how long."""
    start = time.monotonic()
    try:
        call()
    except dist.DistBackendError as e:
        kinds = [k.__name__ for k in type(e).__mro__]
        return kinds, str(e), time.monotonic() - start
    return [], "nothing was raised", time.monotonic() - start


def wait_for_the_dead(comm, store):
    """The last rank dies; the others call something each, and say what they heard."""
    begin(comm, store, timeout_s=1800)
    dist.all_reduce(torch.ones(4))
    dist.barrier()
    x = torch.ones(4)
    calls = {
        0: lambda: dist.all_reduce(x),
        1: lambda: dist.all_reduce(x, async_op=True).wait(),
    }
    if comm.rank == comm.num_ranks - 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    return caught(calls[comm.rank])


def test_a_dead_rank_is_named_at_once_however_long_the_timeout(tmp_path):
    """All others hear who died in two seconds, though they would wait 30 minutes."""
    with pytest.raises(stretto.RankFailed) as failed:
        stretto.spawn(wait_for_the_dead, f"{tmp_path}/store", num_ranks=3)
    results = failed.value.results
    assert {0, 1} == set(results)
    for kinds, text, took_s in results.values():
        assert "PeerLost" in kinds, text
        assert "rank 2" in text
        assert took_s < soon(2.3)  # 0.3 of them before it died


def train_beside(comm, store, fault):
    """Train by DDP; the last rank has a fault, the others say what backward raised."""
    begin(comm, store, timeout_s=2.0 if fault == "late" else 1800)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    for step in range(3):
        if comm.rank == comm.num_ranks - 1 and step == 2:
            if fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "raises":
                raise ValueError("a bad batch")
            until(Path(f"{store}.said").exists, 60)
            return "late"
        loss = model(torch.ones(2, 8)).sum()
        try:
            loss.backward()
        except RuntimeError as e:
            Path(f"{store}.said").touch()
            return str(e)
    return "nothing was raised"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("dies", "PeerLost: rank 1 died"),
        ("raises", "PeerLost: rank 1 (ended with ValueError|closed)"),
        ("late", "CollectiveTimeout: .* rank 1"),
    ],
)
def test_ddp_says_in_backward_what_became_of_a_rank(tmp_path, fault, says):
    """The reducer asks for the Future in C++, which has to see the error, too."""
    try:
        said = stretto.spawn(train_beside, f"{tmp_path}/store", fault, num_ranks=2)[0]
    except stretto.RankFailed as failed:
        said = failed.results.get(0, f"rank 0 had no time to say it: {failed}")
    assert re.search(says, said), said


def play(comm, folder, scenes):
    """Play scenes, each in groups of its own, in the same processes."""
    said = {}
    for scene in scenes:
        said[scene.__name__] = scene(comm, f"{folder}/{scene.__name__}")
        comm.barrier()
        if dist.is_initialized():
            dist.destroy_process_group()
    return said


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Return what two ranks said in every scene."""
    scenes = (
        come_late,
        change_timeouts,
        give_a_barrier_less,
        begin_again,
        split_on_one_side,
        fork_a_child,
        fork_beside_old_groups,
    )
    folder = str(tmp_path_factory.mktemp("scenes"))
    found = stretto.spawn(play, folder, scenes, num_ranks=2, deadline_s=soon(90.0))
    return {s.__name__: [said[s.__name__] for said in found] for s in scenes}


def come_late(comm, store):
    begin(comm, store, timeout_s=2.0)
    x, told = torch.ones(2), Flag(Path(store).parent, "told")
    dist.all_reduce(x)
    if comm.rank == 1:  # later than usual, in time
        time.sleep(0.5)
    dist.all_reduce(x)
    good = x.tolist()
    if comm.rank == 1:
        told.wait()
        return good, caught(lambda: dist.all_reduce(x))
    said = caught(lambda: dist.all_reduce(x))
    told.up()
    again = caught(lambda: dist.broadcast(x, 0))
    return good, said, again


def test_a_late_rank_is_waited_for_as_long_as_the_group_says(played):
    """A rank late by less is no fault; by more, it is named and breaks the group."""
    (good, said, again), (_, late) = played["come_late"]
    assert [4.0, 4.0] == good
    kinds, text, took_s = said
    assert {"CollectiveTimeout", "DistBackendError", "RuntimeError"} <= set(kinds)
    assert " Timed out " in text
    assert "rank 1" in text
    assert 1.9 < took_s < soon(4.0)
    assert "CommunicatorBroken" in again[0]
    assert "broken by an earlier fault" in again[1]
    assert "DistBackendError" in late[0]


def change_timeouts(comm, store):
    begin(comm, store, timeout_s=60)
    dist.barrier()
    if comm.rank == 1:
        time.sleep(soon(1.5))
        return None
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.4), dist.group.WORLD)
    return caught(lambda: dist.all_reduce(torch.ones(1)))


def give_a_barrier_less(comm, store):
    begin(comm, store, timeout_s=60)
    dist.barrier()
    if comm.rank == 1:
        time.sleep(soon(1.5))
        return None
    limit = timedelta(seconds=0.4)
    if "timeout" in inspect.signature(dist.barrier).parameters:
        return caught(lambda: dist.barrier(timeout=limit))
    options = dist.BarrierOptions()  # older ones have it here alone
    options.timeout, options.asyncOp = limit, False
    return caught(lambda: dist.group.WORLD.barrier(options))


@pytest.mark.parametrize("how", ["change_timeouts", "give_a_barrier_less"])
def test_a_timeout_may_be_changed_for_a_group_or_a_barrier(played, how):
    """The shorter timeout counts from the next call on."""
    said, _ = played[how]
    assert "CollectiveTimeout" in said[0]
    assert 0.3 < said[2] < soon(1.4)


def begin_again(comm, store):
    """Three groups, one after another, under one name; the second breaks."""
    found = []
    for k in range(3):
        begin(comm, f"{store}{k}")
        x = torch.ones(3) * (k + 1)
        dist.all_reduce(x)
        found.append(x[0].item())
        if k == 1:
            call = dist.all_reduce if comm.rank else dist.broadcast
            args = () if comm.rank else (0,)
            kinds, text, _ = caught(lambda c=call, a=args: c(torch.ones(3), *a))
            found.append(("CollectiveMismatch" in kinds, "all_reduce" in text))
        dist.destroy_process_group()
    with pytest.raises(ValueError, match="not been initialized"):
        dist.all_reduce(torch.ones(1))
    return found


def test_groups_may_be_made_again_after_an_end_and_after_a_fault(played):
    """A third group under one name works, although the second broke."""
    want = [2.0, 4.0, (True, True), 6.0]
    assert [want, want] == played["begin_again"]


def split_on_one_side(comm, store):
    """One rank gives splits, the other none: two different calls of ours."""
    begin(comm, store, timeout_s=20)
    splits = ([1, 1], [1, 1]) if comm.rank else (None, None)
    return caught(lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2), *splits))


def test_splits_on_one_rank_alone_are_an_error_that_names_both_calls(played):
    """Both ranks hear at once what each of them called."""
    for kinds, text, took_s in played["split_on_one_side"]:
        assert "CollectiveMismatch" in kinds
        assert "all_to_all" in text
        assert "all_gather" in text
        assert took_s < 10


def fork_a_child(comm, store):
    begin(comm, store)
    x = torch.ones(2)
    dist.all_reduce(x)
    child = os.fork()
    if not child:
        kinds, text, _ = caught(lambda: dist.all_reduce(x))
        os._exit(0 if "CallError" in kinds and "forked" in text else 1)
    _, status = os.waitpid(child, 0)
    dist.all_reduce(x)
    dist.destroy_process_group()
    return status, x.tolist()


def fork_beside_old_groups(comm, store):
    """Leave a destroyed group to the collector of a child."""
    begin(comm, store)
    gc.collect()
    gc.disable()
    group = dist.new_group(list(range(comm.num_ranks)))
    dist.all_reduce(torch.ones(2), group=group)
    dist.destroy_process_group(group)
    del group
    child = os.fork()
    if not child:
        gc.collect()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    gc.enable()
    gc.collect()
    dist.destroy_process_group()
    return status


def test_a_child_collects_nothing_of_its_parents_groups(played):
    """Gloo's destructor would wait for threads that no child has."""
    assert [0, 0] == played["fork_beside_old_groups"]


def test_a_forked_child_is_told_and_its_parent_goes_on(played):
    """A call in the child is an error there, and costs the parent nothing."""
    assert [(0, [4.0, 4.0])] * 2 == played["fork_a_child"]


END = """
import sys, torch, torch.distributed as dist, stretto.torch
dist.init_process_group("stretto", init_method=sys.argv[1], rank=int(sys.argv[2]),
                        world_size=2)
x = torch.ones(1000)
dist.all_reduce(x)
work = dist.all_reduce(x, async_op=True)
sub = dist.new_group()
dist.all_reduce(x, group=sub, async_op=True)
"""


def test_a_process_may_end_without_ending_its_groups(tmp_path):
    """Whatever was started ends first; nothing hangs, and nothing is printed."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", END, f"file://{tmp_path}/store", str(rank)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in ranks:
        _, said = process.communicate(timeout=100)
        assert (0, "") == (process.returncode, said)
