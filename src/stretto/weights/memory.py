"""Where tensors lie, on a host or a GPU: there they are copied, and added up.

On a host an array is NumPy's, on a GPU PyTorch's: both are indexed and viewed alike.
PyTorch is not imported: who has such a tensor has it.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, LayoutError
from stretto.executors import cuda
from stretto.program.collectives import storage
from stretto.transfer import Engine
from stretto.transfer.copying.mixing import copied, mixed
from stretto.weights.casts import LEAST, MOST, Made
from stretto.weights.changes import BLOCK, Found, found_at

__all__ = ["HostMemory", "PartSums", "memory_of"]

_COMPARED = 1 << 20
"""Elements that are compared at once, so that they are found again in a cache."""
_SIGNED = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


_GPU_PIECE = 512 << 20
"""Bytes that come from another GPU in 1.4 ms, which is more than to ask for them."""


class PartSums:
    """Adds arrays up, some at a time, and first copies those that have sources."""

    def __init__(
        self, arrays: Sequence[Any], sources: Sequence[Any] | None = None
    ) -> None:
        self._pairs = list(zip(arrays, sources or [None] * len(arrays), strict=True))
        self._sums = [0] * len(arrays)

    def begin(self, stream: int | None) -> None:
        """Begin anew, behind what a stream was given."""

    def add(self, first: int, last: int) -> None:
        """Add up the arrays of some numbers."""
        for i in range(first, last):
            array, source = self._pairs[i]
            self._sums[i] = mixed(array) if source is None else copied(array, source)

    def wait(self) -> None:
        """Wait until what was added has been read, and copied."""

    def found(self) -> tuple[int, ...]:
        """Return the sums of all."""
        return tuple(self._sums)

    def close(self) -> None:
        """Give back what it has."""


class HostMemory:
    """Memory of the host."""

    stream: int | None = None
    """What versions are read by, beside all streams of users."""
    adding: int | None = None
    """What is added up by as it comes, beside that."""
    piece = 1 << 62
    """Bytes that are read at once from this host, at most: all of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def room(self, nbytes: int) -> Any:
        """Return memory, as bytes, which peers of this host reach by itself."""
        return self.engine.arena(nbytes)

    def typed(self, room: Any, dtype: str, extent: Sequence[int]) -> Any:
        """Return bytes as an array."""
        return room.view(storage(dtype)).reshape(tuple(extent))

    def here(self) -> int | None:
        """Return the stream that the caller works on."""
        return None

    def write(self, made: Made, places: Sequence[Any]) -> None:
        """Make what is cast of a tensor."""
        made.write(places)

    def sums(
        self, arrays: Sequence[Any], sources: Sequence[Any] | None = None
    ) -> PartSums:
        """Return what adds up arrays, and first copies those that have sources."""
        return PartSums(arrays, sources)

    def saved(self, array: Any) -> Any:
        """Return a copy of an array, before it is written over."""
        return array.copy()

    def changed(self, new: Any, old: Any) -> Found:
        """Return where two arrays of a type differ in bits, and what is new."""
        kind, step = f"u{new.itemsize}", _COMPARED
        bits, before = new.reshape(-1).view(kind), old.reshape(-1).view(kind)
        found = [
            np.flatnonzero(bits[i : i + step] != before[i : i + step]) + i
            for i in range(0, len(bits), step)
        ]
        places = np.concatenate(found)
        return found_at(places, bits[places], len(bits))

    def carry(self, into: Any, source: Any) -> None:
        """Copy all of an array that is here already."""
        np.copyto(into, source)

    def put(self, into: Any, places: NDArray[np.int64], bits: Any) -> None:
        """Write elements, as bits, at their places, counted by rows."""
        bits = bits.view(into.dtype)
        if into.flags.c_contiguous:
            into.reshape(-1)[places] = bits
        else:
            into[np.unravel_index(places, into.shape)] = bits

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let what is carried and put be done where versions come."""
        yield

    def ended(self, copy: int) -> None:
        """Note that the caller's step has asked for all that it reads of a copy."""

    def wait_read(self, copy: int) -> None:
        """Wait until the steps that ended have read all of a copy."""

    def wait_written(self) -> None:
        """Wait until nothing that was begun writes any more."""

    def close(self) -> None:
        """Give back what it has."""


class GpuMemory(HostMemory):
    """Memory of a GPU, some of it perhaps of the host."""

    piece = _GPU_PIECE

    def __init__(self, engine: Engine, like: Any) -> None:
        super().__init__(engine)
        self._torch, self._like = sys.modules["torch"], like
        mover = engine.gpu.mover
        if like.device.index != mover.device.ordinal:
            raise CallError(
                f"tensors on {like.device}, and engine {engine.name!r} works on GPU "
                f"{mover.device.ordinal}: the one that is current when it is first used"
            )
        self._lanes, self._mixer = (mover.lane(), mover.lane()), cuda.mixer()
        self.stream, self.adding = (lane.stream for lane in self._lanes)
        self._read: dict[tuple[int, int], Any] = {}
        self._sums: list[PartSums] = []

    def room(self, nbytes: int) -> Any:
        """Return memory of the GPU."""
        return self._like.new_empty(nbytes, dtype=self._torch.uint8)

    def typed(self, room: Any, dtype: str, extent: Sequence[int]) -> Any:
        """Return bytes as a tensor."""
        return room.view(getattr(self._torch, dtype)).view(tuple(extent))

    def here(self) -> int | None:
        """Return the stream that the caller works on."""
        return self.engine.gpu.handle(None)

    def write(self, made: Made, places: Sequence[Any]) -> None:
        """Make what is cast of a tensor, on the caller's stream."""
        array, how = made.own.array, made.how
        if isinstance(array, np.ndarray):
            raise CallError(f"{made.own.name!r}: on a host, others on a GPU, and cast")
        if isinstance(how, str):
            places[0].copy_(array)
            return
        assert how is not None, "it is cast"
        most, wide = MOST[how.dtype], made.own.held.dtype
        if how.block is None:
            largest = array.abs().amax().float()
            scale = largest / largest.new_tensor(most)  # a number would be inverted
            scale = self._torch.where(largest > 0, scale.clamp_min(float(LEAST)), 1)
            places[0].copy_(array.float() / scale)
            places[1].copy_(scale)
            return
        rows, columns = array.shape[-2:]
        if columns % 4 or how.block[1] % 4 or not array.is_contiguous():
            raise LayoutError(
                f"{made.own.name!r}: shape {tuple(array.shape)} in blocks {how.block}; "
                "on a GPU want columns in fours, and a tensor without gaps"
            )
        self._mixer.quantise(
            array.data_ptr(), places[0].data_ptr(), places[1].data_ptr(),
            shape=(array.numel() // max(1, rows * columns), rows, columns),
            block=how.block, types=(wide, how.dtype), most=most,
            stream=self.engine.gpu.handle(None),
        )  # fmt: skip

    def sums(
        self, arrays: Sequence[Any], sources: Sequence[Any] | None = None
    ) -> PartSums:
        """Return what adds up arrays where they lie, in one pass that copies, too."""
        self._sums.append(_GpuSums(self._mixer, arrays, sources))
        return self._sums[-1]

    def saved(self, array: Any) -> Any:
        """Return a copy of an array, before it is written over."""
        return array.copy() if isinstance(array, np.ndarray) else array.clone()

    def changed(self, new: Any, old: Any) -> Found:
        """Return where two arrays differ: found where they lie, then taken to the host.

        Of arrays on the host and snapshots here, those on the host are brought first.
        """
        if isinstance(old, np.ndarray):
            return super().changed(new, old)
        torch = self._torch
        if isinstance(new, np.ndarray):
            new = torch.from_numpy(new).to(old.device)
        kind = getattr(torch, _SIGNED[old.element_size()])
        bits, before = new.reshape(-1).view(kind), old.reshape(-1).view(kind)
        step = _COMPARED << 6
        found = torch.cat(
            [
                (bits[i : i + step] != before[i : i + step]).nonzero().view(-1) + i
                for i in range(0, len(bits), step)
            ]
        )
        counts = torch.bincount(found // BLOCK, minlength=-(-len(bits) // BLOCK))
        low = (found % BLOCK).to(torch.int16)  # it keeps the lower half of the bits
        made = [one.cpu().numpy() for one in (counts, low, bits[found])]
        return made[0], made[1].view(np.uint8), made[2].view(np.uint8)

    def carry(self, into: Any, source: Any) -> None:
        """Copy all of an array that is here already, on the stream of versions."""
        if isinstance(into, np.ndarray):
            super().carry(into, source)
        else:
            into.copy_(source, non_blocking=True)

    def put(self, into: Any, places: NDArray[np.int64], bits: Any) -> None:
        """Write elements at their places, on the stream of versions."""
        if isinstance(into, np.ndarray):
            super().put(into, places, bits)
            return
        bits = bits.view(_SIGNED[bits.itemsize])
        values = self._torch.from_numpy(bits).to(into.device).view(into.dtype)
        axes: Sequence[Any] = (places,)
        if into.is_contiguous():
            into = into.view(-1)
        else:
            axes = np.unravel_index(places, tuple(into.shape))
        index = tuple(self._torch.from_numpy(a).to(into.device) for a in axes)
        into.index_put_(index, values)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let what is carried and put be done on the stream by which versions come."""
        self._mixer.device.enter()
        device = self._like.device
        stream = self._torch.cuda.ExternalStream(self.stream, device=device)
        with self._torch.cuda.device(device), self._torch.cuda.stream(stream):
            yield

    def ended(self, copy: int) -> None:
        """Note where the caller's stream is: it reads until then."""
        key = copy, self.engine.gpu.handle(None)
        if key not in self._read:
            self._read[key] = self._torch.cuda.Event()
        self._read[key].record()

    def wait_read(self, copy: int) -> None:
        """Wait until streams have come to where their last step ended."""
        self._mixer.device.enter()  # this thread may have seen no GPU yet
        for (which, _), event in list(self._read.items()):
            if which == copy:
                event.synchronize()

    def wait_written(self) -> None:
        """Wait for the stream that versions come by."""
        for lane in self._lanes:
            lane.wait()

    def close(self) -> None:
        """Give back what it has on the GPU."""
        for sums in self._sums:
            sums.close()
        for lane in self._lanes:
            lane.close()


class _GpuSums(PartSums):
    """Adds up where arrays lie; those that lie on the host there."""

    def __init__(
        self, mixer: Any, arrays: Sequence[Any], sources: Sequence[Any] | None
    ) -> None:
        super().__init__(arrays, sources)
        self._apart: set[int] = set()
        """Those that are copied by PyTorch, and those of the host."""
        self._near: list[int] = []
        places: list[tuple[int, int, int, int, int]] = []
        for i, (array, source) in enumerate(self._pairs):
            if isinstance(array, np.ndarray):
                self._apart.add(i)
                continue
            if isinstance(source, np.ndarray):
                source = sys.modules["torch"].from_numpy(source).view(array.dtype)
                self._pairs[i] = array, source
            pair = array, None
            if source is not None and source.is_cuda and source.is_contiguous():
                pair = source, array  # it is copied as it is added up
            elif source is not None:
                self._apart.add(i)
            places += _runs(len(self._near), *pair)
            self._near.append(i)
        self._on_gpu = mixer.sums(places)

    def begin(self, stream: int | None) -> None:
        """Begin anew, behind what a stream was given."""
        assert stream is not None, "a GPU has streams"
        self._on_gpu.begin(stream)

    def add(self, first: int, last: int) -> None:
        """Add up the arrays of some numbers, on that stream."""
        for i in self._apart.intersection(range(first, last)):
            array, source = self._pairs[i]
            if isinstance(array, np.ndarray):
                super().add(i, i + 1)
            else:
                array.copy_(source)
        near = bisect_left(self._near, first), bisect_left(self._near, last)
        if near[0] < near[1]:
            self._on_gpu.add(*near)

    def wait(self) -> None:
        """Wait until what was added has been read, and copied."""
        self._on_gpu.wait()

    def found(self) -> tuple[int, ...]:
        """Return the sums of all."""
        for i, one in zip(self._near, self._on_gpu.found(), strict=True):
            self._sums[i] = one
        return super().found()

    def close(self) -> None:
        """Give its memory back."""
        self._on_gpu.close()


def _runs(number: int, source: Any, copy: Any) -> list[tuple[int, int, int, int, int]]:
    """Return the runs of a tensor that lie without gaps, as a GPU adds them up."""
    size = source.element_size()
    run, axis = size, source.ndim
    while axis and (
        source.shape[axis - 1] == 1 or source.stride(axis - 1) * size == run
    ):
        axis -= 1
        run *= source.shape[axis]
    starts = np.array([source.data_ptr()], np.int64)
    for outer in range(axis):
        steps = source.stride(outer) * size * np.arange(source.shape[outer])
        starts = (starts[:, None] + steps).reshape(-1)
    to = 0 if copy is None else copy.data_ptr()
    return [(number, int(start), to, run, size) for start in starts]


def memory_of(engine: Engine, arrays: Sequence[Any]) -> HostMemory:
    """Return the memory that arrays lie in."""
    for array in arrays:
        if not isinstance(array, np.ndarray):
            return GpuMemory(engine, array)
    return HostMemory(engine)
