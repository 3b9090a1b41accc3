"""The backend and the transport for Ray, on processes that have a stand-in for it."""

import numpy as np
import pytest
from tests.host.ray import test_ray
from tests.host.ray.stand_in import pretend

import stretto

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


class Calls:
    """Ray's functions, as it makes them of a group's methods."""

    def __init__(self, group, types):
        self.group, self.types = group, types

    def _said(self, name, **values):
        return type("Said", (getattr(self.types, name),), values)

    def allreduce(self, x, op=None):
        said = {"reduceOp": op} if op else {}
        self.group.allreduce([x], self._said("AllReduceOptions", **said))

    def reduce(self, x, dst_rank):
        self.group.reduce([x], self._said("ReduceOptions", root_rank=dst_rank))

    def broadcast(self, x, src_rank):
        self.group.broadcast([x], self._said("BroadcastOptions", root_rank=src_rank))

    def allgather(self, outs, x):
        self.group.allgather([outs], [x])

    def reducescatter(self, out, parts):
        self.group.reducescatter([out], [parts])

    def send(self, x, dst_rank):
        self.group.send([x], self._said("SendOptions", dst_rank=dst_rank))

    def recv(self, x, src_rank):
        self.group.recv([x], self._said("RecvOptions", src_rank=src_rank))

    def barrier(self):
        self.group.barrier()


def groups(comm, folder):
    """Make every call in two groups of one name, one after the other."""
    made = pretend(folder)
    import stretto.ray

    stretto.ray.enable()
    stretto.ray.enable()
    from stretto.ray import group as room
    from stretto.ray.group import RayGroup

    wrong = []
    if comm.rank == 1:  # the others do not come
        room._DEADLINE_S, usual = 0.5, room._DEADLINE_S
        try:
            RayGroup(comm.num_ranks, comm.rank, "default")
            wrong.append("it met nobody")
        except stretto.errors.RendezvousError:
            room._DEADLINE_S = usual
    comm.barrier()
    for _ in range(2):
        group = RayGroup(comm.num_ranks, comm.rank, "default")
        calls = Calls(group, made["ray.util.collective.types"])
        made["ray.util"].collective = calls
        wrong += test_ray.every_call(comm.rank, calls, calls.types.ReduceOp)
        try:
            group.allgather([[np.zeros(2)] * 2], [np.zeros(2)])
        except stretto.errors.CallError as e:
            wrong += [] if "want 3, one for every rank" in str(e) else [str(e)]
        try:
            group.allgather([[np.zeros(2), np.zeros(3), np.zeros(2)]], [np.zeros(2)])
        except stretto.errors.CallError as e:
            wrong += [] if "has shape (3,); want (2,)" in str(e) else [str(e)]
        given = np.zeros(2)
        given.flags.writeable = False
        try:
            group.allreduce([given])
        except stretto.errors.CallError as e:
            wrong += [] if "want a copy" in str(e) else [str(e)]
        group.destroy_group()
        comm.barrier()
    return wrong, sorted(path.name for path in folder.glob("*"))


def test_every_call_gives_what_ray_says(tmp_path):
    """Groups follow each other under one name, also one that did not meet.

    They leave nothing in the store.
    """
    found = stretto.spawn(groups, tmp_path, num_ranks=3, deadline_s=60)
    assert [([], [])] * 3 == found


def gives_up(comm, transport):
    """Give up what is read; it can be read afterwards. Return what was wrong."""
    import torch

    wrong = []
    large = torch.arange(1 << 24, dtype=torch.int32)
    if comm.rank == 0:
        about = transport.extract_tensor_transport_metadata("large", [large])
        comm.broadcast_object(about, pickle=True)
    else:
        about = comm.broadcast_object(None, pickle=True)
        begun = transport.fetch_multiple_tensors("large", about, None)
        transport.abort_transport("large", None)
        try:  # it may have come before
            done = transport.wait_fetch_complete(begun, 60)
            wrong += [] if torch.equal(done[0], large) else ["aborted, and wrong"]
        except stretto.errors.TransferError:
            pass
        again = transport.recv_multiple_tensors("large", about, None)
        wrong += [] if torch.equal(again[0], large) else ["wrong afterwards"]
    return wrong


def reads(comm, folder):
    """Read from the other what it says of its tensors, in every way."""
    import torch

    pretend(folder)
    from stretto.ray.transport import RayTransport

    grid, wrong = torch.arange(1200.0).reshape(30, 40), []
    given = [grid, torch.empty(0, 3), grid[::3, ::2], grid.to(torch.bfloat16)[0]]
    transport = RayTransport()
    if comm.rank == 0:
        about = transport.extract_tensor_transport_metadata("one", given)
        again = transport.extract_tensor_transport_metadata("one", given)
        comm.broadcast_object((about.tensor_meta, again), pickle=True)
    else:
        meta, about = comm.broadcast_object(None, pickle=True)
        for into in (None, [torch.zeros(shape, dtype=of) for shape, of in meta]):
            got = transport.recv_multiple_tensors("one", about, None, into)
            if into is not None and any(
                a is not b for a, b in zip(got, into, strict=True)
            ):
                wrong.append("not into what was given")
            wrong += [
                nth for nth, (a, b) in enumerate(zip(got, given, strict=True))
                if a.dtype != b.dtype or not torch.equal(a, b)
            ]  # fmt: skip
        wide = torch.zeros(30, 80)
        into = [wide[:, ::2], *(torch.zeros(s, dtype=d) for s, d in meta[1:])]
        begun = transport.fetch_multiple_tensors("one", about, None, into)
        transport.wait_fetch_complete(begun, 60)
        if not torch.equal(wide[:, ::2], grid) or wide[:, 1::2].any():
            wrong.append("with gaps")
    comm.barrier()
    if comm.rank == 0:
        transport.garbage_collect("one", about, given)
        both = [torch.zeros(2), torch.zeros(2, device="meta")]
        try:
            transport.extract_tensor_transport_metadata("odd", both)
        except stretto.errors.TransferError as e:
            wrong += [] if "cpu and meta" in str(e) else [str(e)]
    comm.barrier()
    if comm.rank == 1:
        begun = transport.fetch_multiple_tensors("none", about, None, [])
        wrong += transport.wait_fetch_complete(begun)
        transport.abort_transport("none", None)
    wrong += gives_up(comm, transport)
    comm.barrier()
    return wrong


def test_tensors_are_read_from_whoever_has_them(tmp_path):
    """New ones, and into those that were given; also empty ones, and with gaps."""
    found = stretto.spawn(reads, tmp_path, num_ranks=2, deadline_s=60)
    assert [[], []] == found
