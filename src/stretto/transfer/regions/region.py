"""Memory with a name and a layout, here or at a peer, and views of parts of it."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, LayoutError, UnknownNameError
from stretto.transfer.layouts import Layout
from stretto.transfer.links.counterpart import Counterpart
from stretto.transfer.memory.tensors import ARENA, GPU, MEMORY
from stretto.transfer.plans import BoxRun, Plan, planned
from stretto.transfer.plans.plan import Only


class Begins(Protocol):
    """The engine of this process, as memory knows it: what begins its transfers."""

    name: str

    def start(self, src: Any, dst: Any, **how: Any) -> Any:
        """Begin a transfer."""

    def prepare(self, src: Any, dst: Any, **how: Any) -> Any:
        """Prepare a transfer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Region:
    """Tensors of one layout: ours, or a peer's."""

    name: str
    layout: Layout
    kind: str
    """Where they lie: in an arena, a process's own memory, on a GPU, or in a store."""
    addresses: tuple[int, ...]
    """Where each begins: here, or, of a peer's own memory, there."""
    places: tuple[tuple[int, int], ...] = ()
    """Of each the number of its arena, and its offset there."""
    slot: int = 0
    epoch: int = 0
    """The lease under which everybody may use it who knows its name."""
    read_only: bool = False
    engine: Begins | None = None
    """Who moves to it and from it."""
    peer: Counterpart | None = None
    """Whose it is, where it is a peer's."""
    holds: object = None
    pins: object = None
    """What keeps its tensors where they are, as far as something can."""
    gpu: Any = None
    """What a peer needs to reach it on a GPU."""

    @property
    def nbytes(self) -> int:
        """Return how many bytes its tensors span together."""
        return self.layout.part_bytes * self.layout.num_parts

    @property
    def view(self) -> View:
        """Return a view of all of it."""
        return View(region=self, layout=self.layout)

    def __getitem__(self, pages: Any) -> View:
        """Return a view of pages; of a plain buffer, of a slice."""
        return self.view[pages]

    def layer(self, number: int) -> View:
        """Return a view of one layer."""
        return self.view.layer(number)

    def only(self, **ranges: tuple[int, int]) -> View:
        """Return a view of ranges of axes, such as `only(L=(0, 4))`."""
        return self.view.only(**ranges)

    def put(self, src: Any, **how: Any) -> Any:
        """Copy all of something here; see `View.put`."""
        return self.view.put(src, **how)

    def get(self, dst: Any, **how: Any) -> Any:
        """Copy all of it to something of ours; see `View.get`."""
        return self.view.get(dst, **how)

    def __repr__(self) -> str:
        """Return its name, where it is and how it lies."""
        whose = "ours" if self.peer is None else f"of {self.peer.name!r}"
        return f"<Region {self.name!r} {whose}, in {self.kind}: {self.layout}>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """A part of a region."""

    region: Region
    layout: Layout
    shift: int = 0
    """Bytes from where each tensor begins: of a slice of a buffer."""
    pages: NDArray[np.int64] | None = None
    ranges: Only = ()
    tokens: int | None = None

    def __getitem__(self, pages: Any) -> View:
        """Return a view of pages; of a plain buffer, of a slice."""
        if isinstance(pages, slice):
            return self._slice(pages)
        if not self.layout.is_paged:
            raise CallError(
                f"{self.region.name!r}: {self.layout} has no pages to be named"
            )
        return replace(self, pages=self._named(pages))

    def _named(self, given: Any) -> NDArray[np.int64]:
        """Return pages of the region; of a view of pages, those numbers are among."""
        try:
            asked = np.atleast_1d(np.asarray(given))
        except ValueError:  # lists of several lengths
            asked = np.zeros((0, 0))
        if asked.ndim != 1 or (asked.size and asked.dtype.kind not in "iu"):
            raise CallError(
                f"{self.region.name!r}: pages are a list of whole numbers; got "
                f"{given!r:.60}"
            )
        count = self._num_pages
        if asked.size and not (asked.min() >= 0 and asked.max() < count):
            wrong = asked[(asked < 0) | (asked >= count)][0]
            raise CallError(
                f"{self.region.name!r}: page {wrong}, of {count} that are there"
            )
        asked = asked.astype(np.int64)
        return asked if self.pages is None else self.pages[asked]

    @property
    def _num_pages(self) -> int:
        return self.layout.num_pages if self.pages is None else len(self.pages)

    def _slice(self, part: slice) -> View:
        if self.layout.is_paged:
            pages = range(*self._indices(part, self._num_pages, "pages"))
            return replace(self, pages=self._named(pages))
        axes = self.layout.axes
        if len(axes) > 1 or self.layout.parts:
            raise CallError(
                f"{self.region.name!r}: only a buffer of one axis is sliced; this is "
                f"{self.layout}; use only(AXIS=(start, stop))"
            )
        if self.ranges:
            raise CallError(
                f"{self.region.name!r}: [{_said(part)}] of what only() picked; slice "
                "first, or pick all at once"
            )
        start, stop, step = self._indices(part, axes[0].size, "elements")
        if step != 1 or stop <= start:
            raise CallError(
                f"{self.region.name!r}: [{_said(part)}]; want START:STOP, and "
                "something between them"
            )
        layout = Layout(
            f"{axes[0].name}={stop - start}@{axes[0].stride} {self.layout.dtype}"
        )
        shift = self.shift + start * axes[0].stride
        return replace(self, layout=layout, shift=shift)

    def _indices(self, part: slice, size: int, what: str) -> tuple[int, int, int]:
        """Return what a slice says; CallError: it reaches outside."""
        ends = [end for end in (part.start, part.stop) if end is not None]
        with contextlib.suppress(TypeError, ValueError):  # no numbers, or a step of 0
            if all(-size <= operator.index(end) <= size for end in ends):
                return part.indices(size)
        raise CallError(
            f"{self.region.name!r}: [{_said(part)}] of {size} {what}; want a part that "
            "is there"
        )

    def layer(self, number: int) -> View:
        """Return a view of one layer."""
        return self.only(L=(number, number + 1))

    def only(self, **ranges: tuple[int, int]) -> View:
        """Return a view of ranges of axes, in the whole tensor's numbers."""
        some = []
        for name, ends in ranges.items():
            self.layout.axis(name)
            try:
                start, stop = map(operator.index, ends)
            except (TypeError, ValueError):
                raise CallError(
                    f"{self.region.name!r}: only {name}={ends!r:.60}; want a pair of "
                    "whole numbers, (START, STOP)"
                ) from None
            some.append((name, start, stop))
        return replace(self, ranges=(*self.ranges, *some))

    def first(self, tokens: int) -> View:
        """Return a view of so many tokens, from the first of its pages on."""
        if not self.layout.is_paged:
            raise CallError(
                f"{self.region.name!r}: {self.layout} has no pages of tokens"
            )
        if not hasattr(tokens, "__index__") or isinstance(tokens, bool):
            raise CallError(
                f"{self.region.name!r}: first({tokens!r:.40}); want a number of tokens"
            )
        return replace(self, tokens=operator.index(tokens))

    @property
    def picks(self) -> dict[str, tuple[int, int]]:
        """Return the range of each axis of which only a part is picked."""
        found: dict[str, tuple[int, int]] = {}
        for name, start, stop in self.ranges:
            low, high = found.get(name, (start, stop))
            found[name] = max(low, start), min(high, stop)
            if found[name][0] >= found[name][1]:
                raise CallError(
                    f"{self.region.name!r}: nothing is left of {self.ranges}"
                )
        return found

    @property
    def picked(self) -> Layout:
        """Return the layout of an array that has what is picked, and no more."""
        picks, layout = self.picks, self.layout.packed
        for name, (start, stop) in picks.items():
            axis = layout.axis(name)
            if not axis.start <= start < stop <= axis.stop:
                raise LayoutError(
                    f"{self.region.name!r}: only {name} {start}:{stop}; it holds {axis}"
                )
            layout = layout.hold(name, start, stop)
        return layout if self.pages is None else layout.paged(len(self.pages))

    @property
    def addresses(self) -> list[int]:
        """Return where each tensor of it begins."""
        return [at + self.shift for at in self.region.addresses]

    def put(self, src: Any, **how: Any) -> Any:
        """Copy something of ours here, and return at once.

        `src` is a view, a region, or an array of this view's shape: whatever is larger
        or smaller is refused, unless layouts say what of it is meant. `notify` is a
        name that the peer can wait for; `deadline` are seconds; `lease` is what the
        peer's `lease` gave; with `checksum`, what has arrived is compared with what
        was sent.
        """
        return _engine(self, src).start(src, self, **how)

    def get(self, dst: Any, **how: Any) -> Any:
        """Copy it to something of ours; see `put`."""
        return _engine(self, dst).start(self, dst, **how)

    def prepare_put(self, src: Any, **how: Any) -> Any:
        """Return a put that can be called again and again, for the price of a copy.

        On GPUs `signal`, a view of 8 bytes there, gets the number of the call when
        the bytes have come: kernels that wait for it read them then.
        """
        return _engine(self, src).prepare(src, self, **how)

    def prepare_get(self, dst: Any, **how: Any) -> Any:
        """Return a get that can be called again and again."""
        return _engine(self, dst).prepare(self, dst, **how)


def _said(part: slice) -> str:
    """Return a slice as it is written."""
    ends = ["" if end is None else str(end) for end in (part.start, part.stop)]
    return ":".join(ends if part.step is None else [*ends, str(part.step)])


def _engine(view: View, other: Any) -> Begins:
    given = getattr(other, "region", other)
    found = view.region.engine or getattr(given, "engine", None)
    if found is None:
        raise CallError("neither side of this transfer belongs to an engine")
    return found


class Match(NamedTuple):
    """What two views have in common, as it is moved."""

    plan: Plan
    runs: tuple[BoxRun, ...]
    tokens: int | None
    nbytes: int
    pieces: int
    src_at: list[int]
    dst_at: list[int]


def matched(a: View, b: View) -> Match:
    """Return the plan of what both views pick, proved; CallError: they do not fit."""
    ours, theirs, at = a.picks, b.picks, (a.addresses, b.addresses)
    if any(ours[name] != theirs[name] for name in ours.keys() & theirs.keys()):
        raise CallError(f"the two sides pick different parts: {a.ranges}, {b.ranges}")
    counts = {view.tokens for view in (a, b) if view.tokens is not None}
    if len(counts) > 1:
        raise CallError(f"from the first {a.tokens} tokens to the first {b.tokens}")
    tokens = counts.pop() if counts else None
    only, pages = {**ours, **theirs}, (a.pages, b.pages)
    plan, runs, nbytes, pieces = planned(a.layout, b.layout, only, pages, tokens)
    return Match(plan, runs, tokens, nbytes, pieces, *at)


def dump(region: Region) -> dict[str, Any]:
    """Return what peers are told of a region of ours."""
    parts = region.places or tuple((-1, at) for at in region.addresses)
    return {
        "say": "share", "name": region.name, "layout": str(region.layout),
        "kind": region.kind, "parts": [list(p) for p in parts], "slot": region.slot,
        "epoch": region.epoch, "read_only": region.read_only, "gpu": region.gpu,
    }  # fmt: skip


def load(
    said: Mapping[str, Any], engine: Begins, peer: Counterpart,
    arenas: Mapping[int, Any], held: Any = (),
) -> Region:  # fmt: skip
    """Return a peer's region, as it was told; LayoutError, CallError: it is none."""
    layout = Layout(str(said["layout"]))
    kind = str(said["kind"])
    if kind not in (ARENA, MEMORY, GPU):
        raise CallError(f"memory of kind {kind[:40]!r}")
    parts = [(int(a), int(b)) for a, b in said["parts"]]
    if len(parts) != layout.num_parts:
        raise LayoutError(f"{said['name']!r}: {len(parts)} tensors; {layout}")
    addresses = []
    for arena, at in parts:
        if arena < 0 or peer.is_far:
            addresses.append(at)
            continue
        there = arenas.get(arena)
        if there is None:
            raise UnknownNameError.among("arena", str(arena), map(str, arenas))
        if at < 0 or at + layout.part_bytes > there.nbytes:
            raise CallError(f"{said['name']!r} lies outside of its arena")
        addresses.append(there.address + at)
    return Region(
        name=str(said["name"]), layout=layout, kind=kind,
        addresses=tuple(addresses), places=tuple(parts), slot=int(said["slot"]),
        epoch=int(said["epoch"]), read_only=bool(said["read_only"]), engine=engine,
        peer=peer, gpu=said.get("gpu"), holds=tuple(held),
    )  # fmt: skip
