"""What a rank knows of everybody's memory: what tables are made of."""

from __future__ import annotations

from typing import NamedTuple

from stretto.executors.cpu.shared.slab import SlabLayout


class Memory(NamedTuple):
    """What a rank knows of everybody's memory: addresses in this process."""

    rank: int
    slabs: tuple[int, ...]
    """0 for a rank on another host."""
    heaps: tuple[int, ...]
    session: int
    layout: SlabLayout
    cache_bytes: int
    """What fits in the last level of cache."""
    none_across: str = ""
    """Why the kernel does not copy from every other rank's memory, or nothing."""
