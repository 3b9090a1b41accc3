"""Which way bytes go between two memories, and why not a better one."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.transfer.copying.words import Mode
from stretto.transfer.memory.region import ARENA, GPU, Region
from stretto.transfer.ports import PeerLike

__all__ = ["Path", "choose", "explained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A way that bytes go."""

    name: str
    mode: Mode | None
    """Who moves each run, where one side does it all; None: both, through a stage."""
    why: str = ""
    """Why it is not a better one."""


SAME = Path(name="same process", mode=Mode.COPY)
SHARED = Path(name="shared memory", mode=Mode.COPY)


def choose(
    peer: PeerLike | None,
    theirs: Region | None,
    *,
    is_put: bool,
    touched: bool = False,
) -> Path:
    """Return the way to or from a peer's memory; without one, within this process.

    `touched` are elements that are converted or summed on their way.
    """
    if peer is None or theirs is None:
        return SAME
    if theirs.kind == GPU:
        return Path(name="gpu", mode=None)
    if peer.is_far:
        why = f"engine {peer.name!r} is on another host, or came over the network"
        return Path(name=peer.engine.hop, mode=None, why=why)
    if peer.is_self:
        return SAME
    if theirs.kind == ARENA:
        return SHARED
    if peer.reaches and not touched:
        mode = Mode.WRITE if is_put else Mode.READ
        why = "it is not in an arena: engine.arena() is faster"
        return Path(name="cross-memory", mode=mode, why=why)
    if peer.reaches:
        why = "elements are converted or summed, and it is not in an arena"
    else:
        why = f"it is not in an arena, and {peer.why_not}"
    return Path(name="stage", mode=None, why=why)


def explained(peer: PeerLike) -> str:
    """Return the ways to all of a peer's memories, a line each."""
    where = f"at {peer.address}" if peer.is_far else f"pid {peer.pid}"
    lines = [f"engine {peer.name!r}, {where}{': lost, ' * bool(peer.lost)}{peer.lost}"]
    if peer.lost:
        return lines[0]
    for name in peer.names:
        region = peer[name]
        path = choose(peer, region, is_put=True)
        why = f"; {path.why}" if path.why else ""
        lines.append(f"  {name!r} ({region.layout}): {path.name}{why}")
    return "\n".join(lines)
