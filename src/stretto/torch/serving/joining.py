"""A communicator for a group that a serving engine made on another backend.

Engines hand over a group on the CPU (Gloo's). Its members meet once; who asks again for
the same group gets the same communicator.
"""

from __future__ import annotations

import secrets
import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor

from stretto.errors import CallError
from stretto.runtime.calls import Communicator, connect
from stretto.torch import registry
from stretto.torch.operators.library import named

DEADLINE_S = 600.0
"""How late a rank may be: engines load weights and compile between calls."""


class Joined:
    """A communicator that several users of one group share; the last one closes it."""

    def __init__(self, comm: Communicator, *, ours: bool) -> None:
        self.comm, self._ours, self._users = comm, ours, 0
        self.name = named(comm)
        """What compiled code knows it by."""

    def take(self) -> Joined:
        """Count a user."""
        self._users += 1
        return self

    def leave(self) -> None:
        """Close the communicator after its last user, if it was made here."""
        self._users -= 1
        if not self._users and self._ours:
            self.comm.close()


_joined: weakref.WeakKeyDictionary[Any, Joined] = weakref.WeakKeyDictionary()


def joined(group: Any) -> Joined | None:
    """Return a group's communicator (collective); None: its ranks share no host."""
    if isinstance(group, Communicator):
        return Joined(group, ours=False).take()
    group = dist.group.WORLD if group is None else group
    found = _joined.get(group)
    if found is not None and found._users:
        return found.take()
    try:
        found = Joined(registry.communicator(group), ours=False)
    except CallError:  # of another backend
        comm = _meet(group)
        if comm is None:
            return None
        found = Joined(comm, ours=True)
    _joined[group] = found
    return found.take()


def _meet(group: Any) -> Communicator | None:
    size = dist.get_world_size(group)
    said: list[Any] = [None] * size
    dist.all_gather_object(said, (socket.gethostname(), secrets.token_hex(12)), group)
    if len({host for host, _ in said}) > 1:
        return None
    rank = dist.get_rank(group)
    return connect(rank, size, f"serving-{said[0][1]}", deadline_s=DEADLINE_S)


def usable(x: Tensor) -> bool:
    """Return whether a tensor is of a kind that engines' own kernels take."""
    whole = x.untyped_storage().nbytes() - x.storage_offset() * x.element_size()
    dense = x.is_contiguous() or whole == x.numel() * x.element_size()
    return dense and not x.nbytes % 16


class PeerAllReduce:
    """What both engines ask of their all_reduce by peer memory."""

    def __init__(self, group: Any, most_bytes: int | None) -> None:
        """Join the group's ranks (collective); `disabled` says that it cannot be.

        Larger tensors than `most_bytes` are not ours; None: as the profile says.
        """
        self.group = group
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        found = joined(group) if self.world_size > 1 else None
        self._joined, self._name = found, "" if found is None else found.name
        self.disabled = found is None
        if most_bytes is None:
            most_bytes = 0 if found is None else found.comm.measured().engines_up_to
        self.max_size = most_bytes

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Be around the capture of graphs, which needs nothing here."""
        yield

    def should_custom_ar(self, inp: Tensor) -> bool:
        """Return whether `custom_all_reduce` takes a tensor."""
        return not self.disabled and inp.nbytes <= self.max_size and usable(inp)

    def close(self) -> None:
        """Give the communicator back."""
        left, self._joined, self.disabled = self._joined, None, True
        if left is not None:
            left.leave()
