"""`torch.distributed.shrink_group` of our groups: those who are left go on as fewer.

torch makes what is left a group of its own, whose backend is in C++. Ours is made here,
by the meeting that the ranks have already, and is what torch's function returns.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from stretto.fabric.meeting.peers import PeerGroup
from stretto.runtime.calls import Communicator
from stretto.torch.base import GroupBase
from stretto.torch.faults import both_families, refusal
from stretto.torch.group import create
from stretto.torch.meeting import elsewhere
from stretto.torch.options import Options

_ABORT = 1
_HELPERS = [
    "_validate_shrink_inputs",
    "_prepare_shrink_target_group",
    "_validate_and_process_excluded_ranks",
    "_destroy_all_other_groups",
    "_extract_group_metadata",
    "_cleanup_original_group",
    "_register_pg_in_world",
]
"""Of torch's own function: checks, and what torch remembers of groups."""


class _Left:
    """Where a group meets that has met: its communicator is there."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def join(self, group: Any, opts: Any, timeout_s: float) -> Communicator:
        """Return what the group's calls are made on."""
        return self._comm

    def leave(self, group: Any) -> None:
        """Take note that the group is closed: nobody minds."""


def install() -> None:
    """Have torch's function serve our groups, too, where there is one."""
    theirs = getattr(dist, "shrink_group", None)
    if theirs is None or hasattr(theirs, "of_stretto"):
        return
    if not all(hasattr(c10d, name) for name in _HELPERS):
        return  # another version's: it says that we do not support it

    @functools.wraps(theirs)
    def shrink_group(
        ranks_to_exclude: list[int],
        group: Any = None,
        shrink_flags: int = 0,
        pg_options: Any = None,
    ) -> Any:
        whole = c10d._get_default_group() if group is None else group
        if not isinstance(whole, GroupBase):
            return theirs(ranks_to_exclude, group, shrink_flags, pg_options)
        return shrink(whole, ranks_to_exclude, shrink_flags, pg_options)

    shrink_group.of_stretto = True  # type: ignore[attr-defined]
    dist.shrink_group = c10d.shrink_group = shrink_group


def shrink(whole: GroupBase, ranks: list[int], flags: int, options: Any) -> Any:
    """Return a group without some ranks, which do not call it; the old one ends."""
    c10d._validate_shrink_inputs(ranks, flags)
    said = c10d._prepare_shrink_target_group(whole)
    out = c10d._validate_and_process_excluded_ranks(ranks, said)
    if elsewhere:
        raise refusal(
            "shrink_group: the ranks of this job change by stretto.torch.elastic; want "
            "`stretto launch --min N`, or a job without it"
        )
    if options is not None and not isinstance(options, Options):
        what = type(options).__name__
        raise refusal(f"pg_options is a {what}; want stretto.torch.Options")
    left = [r for r in range(whole.size()) if r not in out]
    if flags == _ABORT:
        whole._queue.discard(refusal("shrink_group: what was under way was aborted"))
    with both_families():
        comm = _communicator_of(whole._communicator, left)
    known = dist.get_process_group_ranks(whole)
    members = [known[r] for r in left]
    if said["is_default_group"]:
        c10d._destroy_all_other_groups(exclude_group=whole)
    name = c10d._process_group_name(members, use_hashed_name=True)
    facts = {**c10d._extract_group_metadata(whole), "new_group_name": name}
    timeout = whole._fallback.timeout
    c10d._cleanup_original_group(whole, said["is_default_group"])
    elsewhere.append(_Left(comm))
    try:
        made = create(
            SimpleNamespace(
                group_rank=comm.rank, group_size=comm.num_ranks, group_id=name,
                store=dist.PrefixStore(f"{name}/", facts["store"]), timeout=timeout,
                global_ranks_in_group=members,
            ),
            options,
        )  # fmt: skip
    finally:
        elsewhere.clear()
    made._set_group_name(name)
    made._set_group_desc(f"{said['group_name']}:shrunk")
    if said["is_default_group"]:
        c10d._update_default_pg(made)
    c10d._register_pg_in_world(
        pg=made,
        backend_name=facts["backend_name"],
        store=facts["store"],
        group_name=name,
        backend_config=facts["backend_config"],
        rank_mapping={rank: i for i, rank in enumerate(members)},
    )
    return made


def _communicator_of(whole: Any, left: Sequence[int]) -> Communicator:
    """Return the communicator of some ranks of another, which may be broken."""
    peers = whole._group
    assert isinstance(peers, PeerGroup), "it has met"
    name = f"left/{'.'.join(map(str, left))}"
    group = peers.subgroup(name, left, apart=True)
    group.opens_late = peers.opens_late
    try:
        return Communicator(group, profiles=whole._profiles)
    except BaseException:
        group.close()
        raise
