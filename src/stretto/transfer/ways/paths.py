"""Which way bytes go between two memories, and why not a better one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.fabric import hop as hops
from stretto.transfer.copying.words import Mode
from stretto.transfer.links.counterpart import Counterpart
from stretto.transfer.memory.tensors import ARENA, GPU, STORE
from stretto.transfer.regions.region import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A way that bytes go."""

    name: str
    mode: Mode | None
    """Who moves each run, where one side does it all; None: both, through a stage."""
    is_stored: bool = False
    why: str = ""
    """Why it is not a better one."""


SAME = Path(name="same process", mode=Mode.COPY)
BY_GPU = Path(name="gpu", mode=None)
SHARED = Path(name="shared memory", mode=Mode.COPY)


def lacks(carrier: str) -> str:
    """Return why engines cannot go by a carrier here, or nothing."""
    return str(hops.get(carrier).missing())


def choose(
    peer: Counterpart | None,
    theirs: Region,
    *,
    is_put: bool,
    touched: bool = False,
    on_gpu: bool = False,
) -> Path:
    """Return the way to or from a peer's memory; without one, within this process.

    `theirs` is memory of the peer, of a store, or another of this process. `touched`
    are elements that are converted or summed on their way. `on_gpu`: ours
    lie on a GPU.
    """
    if theirs.kind == STORE:
        from stretto.transfer.stores.store import Volume

        assert isinstance(theirs.holds, Volume), "it is in a store"
        store = theirs.holds.store
        return Path(name=f"{store.kind} {store.where}", mode=None, is_stored=True)
    if peer is None:
        return BY_GPU if on_gpu else SAME
    hop = peer.link.hop
    if hop is not None:
        why = f"engine {peer.name!r} is on another host, or came over the network"
        if on_gpu or theirs.kind == GPU:
            why += "; memory on a GPU goes through pinned memory"
        elif not hop.carrier.fields:
            why += "; each side copies once: its carrier puts nothing straight"
        if by := hop.by:
            why += f"; {by}"
        return Path(name=peer.carrier, mode=None, why=why)
    if on_gpu or theirs.kind == GPU:
        return _by_gpu(peer, theirs)
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


def _by_gpu(peer: Counterpart, theirs: Region) -> Path:
    """Return the way between a GPU and memory of a peer on this host."""
    if theirs.kind != GPU:
        if peer.is_self or theirs.kind == ARENA:
            return BY_GPU
        why = "no GPU here reaches it: it is not in an engine.arena()"
        return Path(name="stage", mode=None, why=f"{why}; through pinned memory")
    closed = [told.get("why", "") for told in theirs.gpu if told.get("kind") == "none"]
    if not closed or peer.is_self:
        return BY_GPU
    why = f"its memory cannot be mapped here ({closed[0]}); through pinned memory"
    return Path(name="stage", mode=None, why=why)


def explained(peer: Counterpart, regions: Sequence[Region], *, has_gpu: bool) -> str:
    """Return the ways to all of a peer's memories, a line each.

    Where a GPU is used here, a second line is of memory on it, where that differs.
    """
    about = ": lost, " * bool(peer.lost) + peer.lost
    lines = [f"engine {peer.name!r}, {peer.whereabouts}{about}"]
    for region in regions:
        path = choose(peer, region, is_put=True)
        lines.append(f"  {region.name!r} ({region.layout}): {_said(path)}")
        ours = choose(peer, region, is_put=True, on_gpu=True)
        if has_gpu and ours != path:
            lines.append(f"    from and to a GPU here: {_said(ours)}")
    return "\n".join(lines)


def _said(path: Path) -> str:
    return f"{path.name}; {path.why}" if path.why else path.name
