"""Names of groups of torch.distributed, and the communicator that each stands for.

Operators, layers and graphs name a group by a text; here it becomes the communicator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from stretto.errors import CallError
from stretto.torch.untraced import untraced

if TYPE_CHECKING:
    from stretto.runtime.calls import Communicator

_bound: dict[str, Communicator] = {}
_queues: dict[str, Any] = {}
"""The started calls of each group, which go before whatever is called next."""


def bind(name: str, communicator: Communicator, queue: Any = None) -> None:
    """Let a group's name stand for this communicator, until `forget`."""
    _bound[name] = communicator
    if queue is not None:
        _queues[name] = queue


def forget(name: str) -> None:
    """Let a group's name stand for nothing; a group may be destroyed twice."""
    _bound.pop(name, None)
    _queues.pop(name, None)


@untraced
def communicator(group: Any = None) -> Communicator:
    """Return the communicator of a group: None is the default group.

    A group is a ProcessGroup, its name, or a communicator itself. Calls of the group
    that were started have run when this returns: what is called now follows them, as
    on the other ranks.
    """
    if group is None or isinstance(group, str | dist.ProcessGroup):
        name = group if isinstance(group, str) else _name(group)
        found = _bound.get(name)
        if found is None:
            raise CallError(_why_not(group, name))
        _run_started(name)
        return found
    from stretto.runtime.calls import (
        Communicator,  # late, so that the import stays quick
    )

    if isinstance(group, Communicator):
        return group
    raise CallError(_why_not(group, _name(group)))


def _run_started(name: str) -> None:
    queue = _queues.get(name)
    if queue is not None:
        with queue.lock:  # one may be running, and not be among the calls
            if queue.calls:
                queue.finish()


def _name(group: Any) -> str:
    if group is None:
        if not dist.is_initialized():
            raise CallError(
                "there is no default group; call torch.distributed.init_process_group"
                '("stretto") first, or pass a group or a communicator'
            )
        group = dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise CallError("this rank is not a member of the group that was passed")
    if not isinstance(group, dist.ProcessGroup):
        raise CallError(
            f"a {type(group).__name__} is no group; want None, a ProcessGroup, its "
            f"name, or a communicator"
        )
    return str(group.group_name)


def _why_not(group: Any, name: str) -> str:
    """Return what to say of a group that has no communicator."""
    if isinstance(group, str):
        known = ", ".join(map(repr, sorted(_bound))) or "none"
        return (
            f"no group named {name!r} is of stretto; those that are: {known}. Make it "
            f'with init_process_group("stretto") or new_group(backend="stretto")'
        )
    try:
        backend = dist.get_backend(group)
    except (RuntimeError, ValueError, AssertionError):
        backend = "none any more: it was destroyed"
    return (
        f"group {name!r} has the backend {backend}; want one of stretto: make it with "
        f'init_process_group("stretto") or new_group(backend="stretto")'
    )
