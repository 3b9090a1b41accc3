"""What a store does: it keeps volumes, the tensors of one layout, cut into pieces."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stretto.errors import CallError, StrettoError, reading
from stretto.transfer.layouts import Layout

DEFAULT_PIECE = 8 << 20
_VERSION = 1
_LEAST_PAGE = 4 << 10


class StoreError(StrettoError):
    """A store refuses, or cannot be reached."""


class Missing(StoreError):
    """There is no such volume, or no such piece of it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a volume, and what a store needs to find it."""

    volume: str
    part: int
    """The tensor."""
    number: int
    nbytes: int
    at: int
    """Where it begins in its tensor."""

    def __str__(self) -> str:
        """Return its name."""
        return f"{self.volume}/{self.part}/{self.number}"


class Store(ABC):
    """Where volumes are kept; calls may come from several threads at once."""

    kind: str
    """The name of the way to it: "file" or "object store"."""
    where: str
    """What people call it."""
    streams: int
    """Pieces that are moved at once."""
    takes_parts: bool
    """Whether a part of a piece can be stored; else a piece is stored as a whole."""

    @abstractmethod
    def read(self, piece: Piece, begin: int, into: memoryview) -> int | None:
        """Read a part of a piece; return the sum that is kept of it, if there is one.

        What was never stored are zeros; `Missing`: nothing of the piece was.
        """

    @abstractmethod
    def write(
        self, piece: Piece, begin: int, data: memoryview, total: int | None
    ) -> None:
        """Store a part of a piece, and the sum of all of it; None: there is none."""

    @abstractmethod
    def put_text(self, name: str, text: bytes) -> None:
        """Keep a short text, all or nothing of it."""

    @abstractmethod
    def get_text(self, name: str) -> bytes:
        """Return it; `Missing`: there is none."""

    @abstractmethod
    def names(self, prefix: str) -> Sequence[str]:
        """Return the names of texts that begin so, sorted."""

    @abstractmethod
    def remove(self, volume: str) -> None:
        """Forget a volume; one that is not there is forgotten already."""

    def flush(self, volume: str) -> None:  # noqa: B027  (most have nothing to do)
        """Return when what was stored outlives this machine's power."""

    def close(self) -> None:  # noqa: B027
        """Give back connections and files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Tensors of one layout in a store."""

    store: Store
    name: str
    layout: Layout
    piece: int
    """Bytes of a piece; the last of a tensor may be shorter."""

    def piece_of(self, part: int, number: int) -> Piece:
        """Return a piece of a tensor."""
        at = number * self.piece
        nbytes = min(self.piece, self.layout.part_bytes - at)
        return Piece(self.name, part, number, nbytes, at)


def _piece_of(layout: Layout) -> int:
    """Return the bytes of a piece: whole pages, where they lie in one place."""
    if not layout.is_paged or layout.axes[0].name != "B":
        return DEFAULT_PIECE
    page = layout.axes[0].stride
    return page if page >= _LEAST_PAGE else page * -(-_LEAST_PAGE // page)


def create(store: Store, name: str, layout: Layout, piece: int = 0) -> Volume:
    """Make a volume, or find the one that is there, of this layout."""
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise CallError(f"volume {name!r}; want a name such as 'step-100/w'")
    piece = piece or _piece_of(layout)
    if piece % layout.itemsize:
        raise CallError(f"piece={piece}; want a multiple of {layout.itemsize} bytes")
    made = Volume(store=store, name=name, layout=layout, piece=piece)
    try:
        there = find(store, name)
    except Missing:
        about = {"version": _VERSION, "layout": str(layout), "piece": piece}
        store.put_text(name, json.dumps(about).encode())
        return made
    if there.layout != layout:
        raise CallError(f"{store.where} has {name!r} as {there.layout}; not {layout}")
    return there


def find(store: Store, name: str) -> Volume:
    """Return a volume that is there; `Missing`: it is not."""
    text = store.get_text(name)
    with reading(StoreError, f"{store.where}: {name!r} is no volume", "its layout"):
        about: dict[str, Any] = json.loads(text)
        if about["version"] != _VERSION:
            raise StoreError(
                f"{store.where}: {name!r} is of version {about['version']}"
            )
        layout, piece = Layout(about["layout"]), about["piece"]
        if type(piece) is not int or piece < 1 or piece % layout.itemsize:
            raise ValueError(f"pieces of {str(piece)[:40]} bytes")
    return Volume(store=store, name=name, layout=layout, piece=piece)


def opened(store: Store, name: str, layout: Layout | str | None, piece: int) -> Volume:
    """Return a volume: without a layout it has to be there."""
    if layout is None:
        return find(store, name)
    given = Layout(layout) if isinstance(layout, str) else layout
    return create(store, name, given, piece)
