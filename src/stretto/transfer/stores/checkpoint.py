"""Sharded tensors in a store: saved in one layout by some, loaded in another by others.

A tensor is a folder of shards, each a volume with its own layout. Who loads finds all
of them, proves that they have what it needs, and reads no more than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from stretto.errors import CallError
from stretto.transfer.layouts import Layout
from stretto.transfer.memory.tensors import addresses_of
from stretto.transfer.plans import deal, prove_deal
from stretto.transfer.stores.store import Missing, Store


class _Engine(Protocol):
    """What an engine does here."""

    def share(self, tensors: Any, name: str, layout: Layout | str | None) -> Any:
        """Give memory a name."""

    def unshare(self, region: Any) -> None:
        """Take it back."""

    def stored(
        self, store: Store, name: str, layout: Layout | str | None = None
    ) -> Any:
        """Return memory in a store."""


def save(
    engine: _Engine, store: Store, name: str, tensors: Mapping[str, Any],
    layouts: Mapping[str, Layout | str], *, shard: str = "0", checksum: bool = True,
    timeout: float | None = None,
) -> int:  # fmt: skip
    """Store this rank's part of tensors under names; return the bytes that were stored.

    `shard` tells ranks apart that hold different parts. When it returns, all of it is
    on disk, or with the object store.
    """
    begun, total = [], 0
    for key, given in tensors.items():
        layout = _layout(layouts, key, given)
        ours = engine.share(given, f"{name}/{key}/{shard} (saved)", layout)
        kept = engine.stored(store, f"{name}/{key}/{shard}", ours.layout.packed)
        begun.append((ours, kept, kept.put(ours, checksum=checksum)))
    try:
        for _, kept, transfer in begun:
            total += transfer.wait(timeout).nbytes
            store.flush(kept.name)
    finally:
        for ours, _, transfer in begun:
            transfer.cancel()
            engine.unshare(ours)
    return total


def load(
    engine: _Engine, store: Store, name: str, tensors: Mapping[str, Any],
    layouts: Mapping[str, Layout | str], *, checksum: bool = True,
    timeout: float | None = None,
) -> int:  # fmt: skip
    """Fill this rank's tensors with what was saved, in whatever layouts it was.

    Return how many bytes were read into them.
    """
    begun, total = [], 0
    for key, given in tensors.items():
        shards = store.names(f"{name}/{key}/")
        if not shards:
            raise Missing(f"{store.where} has no shard of {name}/{key}")
        kept = [engine.stored(store, shard) for shard in shards]
        layout = _layout(layouts, key, given)
        ours = engine.share(given, f"{name}/{key} (loaded)", layout)
        dealt = deal([region.layout for region in kept], [ours.layout])
        prove_deal(dealt)
        gets = [
            kept[s]
            .only(**{n: (a, b) for n, a, b in one.only})
            .get(ours, checksum=checksum)
            for (s, _), plans in dealt.plans.items()
            for one in plans
        ]
        begun.append((ours, gets))
    try:
        for _, gets in begun:
            total += sum(one.wait(timeout).nbytes for one in gets)
    finally:
        for ours, gets in begun:
            for one in gets:
                one.cancel()
            engine.unshare(ours)
    return total


def _layout(layouts: Mapping[str, Layout | str], key: str, tensors: Any) -> Layout:
    """Return the layout of tensors, which have as many elements, of its type."""
    if key not in layouts:
        raise CallError(f"no layout for {key!r}; got some for {', '.join(layouts)}")
    given = layouts[key]
    layout = given if isinstance(given, Layout) else Layout(given)
    addresses_of(tensors, layout, repr(key), written=False, is_exact=True)
    return layout
