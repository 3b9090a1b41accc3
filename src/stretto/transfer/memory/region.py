"""Memory with a name and a layout, here or at a peer, and views of parts of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.arrays.operands import host_view, on_gpu
from stretto.arrays.view import view as gpu_view
from stretto.errors import CallError, LayoutError, UnknownNameError
from stretto.transfer.layouts import Layout
from stretto.transfer.plans.plan import Only
from stretto.transfer.ports import EngineLike, PeerLike

__all__ = ["Region", "View", "addresses_of", "told", "untold"]

ARENA, MEMORY, GPU, STORE = "arena", "memory", "gpu", "store"


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
    engine: EngineLike | None = None
    """Whose it is, where it is ours."""
    peer: PeerLike | None = None
    """Whose it is, where it is a peer's."""
    holds: object = None
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
        return replace(self, pages=np.atleast_1d(np.asarray(pages)))

    def _slice(self, part: slice) -> View:
        if self.layout.is_paged:
            pages = np.arange(self.layout.num_pages)[part]
            return replace(self, pages=pages)
        axes = self.layout.axes
        if len(axes) > 1 or self.layout.parts:
            raise CallError(
                f"{self.region.name!r}: only a buffer of one axis is sliced; this is "
                f"{self.layout}; use only(AXIS=(start, stop))"
            )
        start, stop, step = part.indices(axes[0].size)
        if step != 1 or stop <= start:
            raise CallError(f"{self.region.name!r}: [{part}]; want START:STOP")
        layout = Layout(
            f"{axes[0].name}={stop - start}@{axes[0].stride} {self.layout.dtype}"
        )
        shift = self.shift + start * axes[0].stride
        return replace(self, layout=layout, shift=shift)

    def layer(self, number: int) -> View:
        """Return a view of one layer."""
        return self.only(L=(number, number + 1))

    def only(self, **ranges: tuple[int, int]) -> View:
        """Return a view of ranges of axes, in the whole tensor's numbers."""
        for name in ranges:
            self.layout.axis(name)
        some = tuple((name, int(a), int(b)) for name, (a, b) in ranges.items())
        return replace(self, ranges=self.ranges + some)

    def first(self, tokens: int) -> View:
        """Return a view of so many tokens, from the first of its pages on."""
        return replace(self, tokens=tokens)

    @property
    def addresses(self) -> list[int]:
        """Return where each tensor of it begins."""
        return [at + self.shift for at in self.region.addresses]

    def put(self, src: Any, **how: Any) -> Any:
        """Copy something of ours here, and return at once.

        `src` is a view, a region, or an array of this shape. `notify` is a name that
        the peer can wait for; `deadline` are seconds; `lease` is what the peer's
        `lease` gave; with `checksum`, what has arrived is compared with what was sent.
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


def _engine(view: View, other: Any) -> EngineLike:
    if view.region.peer is not None:
        return view.region.peer.engine
    mine = view.region.engine
    if mine is None:
        theirs = getattr(getattr(other, "region", other), "peer", None)
        if theirs is None:
            raise CallError("neither side of this transfer belongs to an engine")
        return theirs.engine  # type: ignore[no-any-return]
    return mine


def addresses_of(
    given: Any, layout: Layout | str | None, what: str, *, written: bool
) -> tuple[Layout, list[int], list[int], str]:
    """Return the layout of tensors, their addresses and bytes, and where they lie.

    The shape must be the layout's, or flat and as large; distances are the tensor's.
    """
    several = isinstance(given, (list, tuple))
    tensors = list(given) if several else [given]
    if not tensors:
        raise CallError(f"{what}: no tensors")
    seen = [_seen(one, what, written=written) for one in tensors]
    if layout is None:
        if several:
            raise CallError(f"{what}: {len(tensors)} tensors and no layout; pass one")
        shape, dtype = seen[0].shape, seen[0].dtype
        count = max(1, math.prod(shape))
        layout = Layout(f"N={count} {dtype}")
        if not shape or not math.prod(shape):
            raise CallError(f"{what}: there is nothing in it")
    elif isinstance(layout, str):
        layout = Layout(layout)
    if layout.num_parts != len(tensors):
        raise LayoutError(
            f"{what}: {len(tensors)} tensors; {layout} is of {layout.num_parts}"
        )
    fitted = [_fitted(layout, one, what) for one in seen]
    if len(set(fitted)) > 1:
        raise LayoutError(f"{what}: its tensors lie differently in memory")
    on = {one.device for one in seen}
    if len(on) > 1:
        raise CallError(f"{what}: tensors on several devices; want one")
    kind = MEMORY if on == {""} else GPU
    return fitted[0], [o.address for o in seen], [o.nbytes for o in seen], kind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    address: int
    nbytes: int
    device: str


def _seen(given: Any, what: str, *, written: bool) -> _Seen:
    if on_gpu(given):
        found = gpu_view(given)
        size = found.nbytes // max(1, math.prod(found.shape))
        axes = range(len(found.shape))
        dense = tuple(size * math.prod(found.shape[i + 1 :]) for i in axes)
        strides = dense if found.contiguous else found.strides
        if len(strides) != len(dense) or min((0, *strides)) < 0:
            raise CallError(f"{what}: {found.why or 'strides that it does not tell'}")
        last = sum((n - 1) * s for n, s in zip(found.shape, strides, strict=True))
        name = str(getattr(found.dtype, "name", found.dtype))
        return _Seen(
            shape=found.shape, strides=strides, dtype=name, address=found.start,
            nbytes=last + size if found.nbytes else 0, device="cuda",
        )  # fmt: skip
    if isinstance(given, (bytes, bytearray, memoryview)):
        given = np.frombuffer(given, np.uint8)
    array, dtype = host_view(given, what)
    if written and not array.flags.writeable:
        raise CallError(f"{what}: a read-only {type(given).__name__}")
    last = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
    if any(s < 0 for s in array.strides):
        raise CallError(f"{what}: an array that runs backwards; pass a copy")
    return _Seen(
        shape=array.shape, strides=array.strides, dtype=dtype,
        address=int(array.ctypes.data), nbytes=last + array.itemsize, device="",
    )  # fmt: skip


def _fitted(layout: Layout, seen: _Seen, what: str) -> Layout:
    """Return a layout at the distances of a tensor that has its shape."""
    same = layout.storage.itemsize == Layout(f"N=1 {seen.dtype}").itemsize
    raw = seen.dtype in ("uint8", "int8") and len(seen.shape) == 1
    if not same and not raw:
        raise LayoutError(f"{what}: elements of {seen.dtype}; {layout} has others")
    if layout.shape == seen.shape and same:
        return layout.strided(seen.strides)
    size = seen.strides[-1] if seen.shape else layout.itemsize
    dense = seen.nbytes == math.prod(seen.shape) * size
    if dense and seen.nbytes >= layout.part_bytes and (len(seen.shape) == 1):
        return layout
    if dense and seen.nbytes == layout.part_bytes:
        return layout
    raise LayoutError(
        f"{what}: a tensor of shape {seen.shape}; {layout} wants {layout.shape}"
    )


def told(region: Region) -> dict[str, Any]:
    """Return what peers are told of a region of ours."""
    parts = region.places or tuple((-1, at) for at in region.addresses)
    return {
        "say": "share", "name": region.name, "layout": str(region.layout),
        "kind": region.kind, "parts": [list(p) for p in parts], "slot": region.slot,
        "epoch": region.epoch, "read_only": region.read_only, "gpu": region.gpu,
    }  # fmt: skip


def untold(
    said: Mapping[str, Any], peer: PeerLike, arenas: Mapping[int, Any], held: Any = ()
) -> Region:
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
        epoch=int(said["epoch"]), read_only=bool(said["read_only"]), peer=peer,
        gpu=said.get("gpu"), holds=tuple(held),
    )  # fmt: skip
