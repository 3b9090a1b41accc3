"""Dispatch and combine on the GPUs of one host: a kernel each, nothing waits on a host.

What users get lies in memory of PyTorch's, in sizes that fit any routing; how much of
it is used says the device. Only rows of layout "rank" stay where they are until the
dispatch after the next: two may be open at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.experts.geometry import Geometry
from stretto.experts.tensors import wants_gradients
from stretto.experts.texts import (
    BLOCK_WORDS,
    OPTIONS,
    CombineCall,
    DispatchCall,
    PeerPlaces,
    has_few,
    laid,
    text_of,
    why_not,
)
from stretto.runtime.calls import Communicator

__all__ = ["GpuDispatched", "GpuExperts", "enqueued"]

MOST_BLOCKS, THREADS = 64, 512


class GpuDispatched:
    """What a dispatch brought, on the device; as `Dispatched`, but for sizes.

    `rows` has room for any routing: how many there are of each expert say `counts`.
    """

    def __init__(
        self, engine: GpuExperts, x: Tensor, ids: Tensor, weights: Tensor | None
    ) -> None:
        """Have memory for what comes."""
        g = self.geometry = engine.geometry
        self.tokens = tokens = x.shape[0]
        self.own_ids, self.own_weights = ids, weights
        self._engine, self.half = engine, engine.half
        nbytes = engine.words["slots"] + 4 * tokens * g.num_ranks
        self.words = x.new_empty(nbytes, dtype=torch.uint8)
        if g.layout == "rank":
            self.rows, self.scales = engine.rows_by_rank[self.half]
            return
        shape, self.scales = (engine.num_lines, g.hidden), None
        if g.quantise:
            groups = engine.num_lines, g.scale_bytes // 4
            self.rows = x.new_empty(shape, dtype=torch.float8_e4m3fn)
            self.scales = x.new_empty(groups, dtype=torch.float32)
        else:
            self.rows = x.new_empty(shape)

    def tensors(self) -> list[Tensor]:
        """Return what is in memory of PyTorch's."""
        made = [self.words, self.own_ids]
        if self.geometry.layout != "rank":
            made.append(self.rows)
        if self.geometry.layout != "rank" and self.scales is not None:
            made.append(self.scales)
        return made if self.own_weights is None else [*made, self.own_weights]

    def at(self, name: str) -> int:
        """Return the address of words."""
        return int(self.words.data_ptr()) + self._engine.words[name]

    def _view(self, name: str, kind: torch.dtype, *shape: int) -> Tensor:
        start = self._engine.words[name]
        nbytes = math.prod(shape) * kind.itemsize
        return self.words[start : start + nbytes].view(kind).view(shape)

    @property
    def ids(self) -> Tensor:
        """Of each row that came: its experts of this rank, by number, or -1."""
        g = self.geometry
        return self._view("out_ids", torch.int32, g.slots, g.top_k)

    @property
    def weights(self) -> Tensor:
        """Of each row that came: the weights of its choices."""
        g = self.geometry
        return self._view("out_weights", torch.float32, g.slots, g.top_k)

    @property
    def counts(self) -> Tensor:
        """How many rows each expert of this rank has."""
        return self._view("counts", torch.int64, self._engine.num_local)

    @property
    def starts(self) -> Tensor:
        """Where the rows of each begin in layout "expert", and where all end."""
        return self._view("starts", torch.int64, self._engine.num_local + 1)

    @property
    def sources(self) -> Tensor:
        """How many rows came from each rank."""
        return self._view("sources", torch.int64, self.geometry.num_ranks)

    def counts_host(self) -> list[int]:
        """Return how many rows each expert of this rank has; the host waits."""
        found: list[int] = self.counts.tolist()
        self._engine.comm.check()
        return found


class GpuExperts:
    """One rank's channels and kernels for dispatches and combines of a geometry."""

    def __init__(
        self, comm: Communicator, geometry: Geometry, *, blocks: int | None = None,
        threads: int = THREADS,
    ) -> None:  # fmt: skip
        """Make memory that peers write, and compile (collective).

        A call takes so many `blocks`, each a multiprocessor; by default 64, or half of
        the GPU's where that is less.
        """
        if why := why_not(geometry):
            raise CallError(f"experts: {why}")
        if blocks is None:
            there: int = torch.cuda.get_device_properties().multi_processor_count
            blocks = min(there // 2, MOST_BLOCKS)
        self.comm, self.geometry = comm, geometry
        g, m = geometry, PeerPlaces.of(geometry, blocks)
        self.num_local = g.num_local(comm.rank)
        self.half = 0
        self._there, self._back = (
            comm.channels(nbytes, blocks=blocks, name=f"{name} of {g.top_k} experts")
            for nbytes, name in ((m.nbytes, "dispatch"), (m.back_nbytes, "combine"))
        )
        text = text_of(g, blocks, threads)
        how: dict[str, Any] = {"threads": threads, "options": OPTIONS}
        self._dispatch, self._combine = (
            channels.kernel(f"{text}// {name}\n", f"stretto_{name}", **how)
            for channels, name in ((self._there, "dispatch"), (self._back, "combine"))
        )
        self.memory = torch.from_dlpack(self._there.buffer)
        """What peers write of a dispatch."""
        device = self.memory.device
        self._blocks = torch.zeros(
            blocks * BLOCK_WORDS, dtype=torch.int64, device=device
        )
        self._blocks_at = self._blocks.data_ptr()
        self._ordinal, self._kind = self.memory.get_device(), getattr(torch, g.dtype)
        self.num_lines = g.most_lines(comm.rank)
        self.words = self._places()
        """Where each table begins in the words of a dispatch."""
        self.rows_by_rank: list[Any] = []
        if g.layout == "rank":
            self.rows_by_rank = [self._by_rank(m, half) for half in range(2)]
        self._side: Any = None
        self._aside = False
        torch.cuda.synchronize()
        comm.barrier()

    def _places(self) -> dict[str, int]:
        g, choices = self.geometry, 4 * self.geometry.slots * self.geometry.top_k
        sizes = {
            "counts": 8 * self.num_local, "starts": 8 * (self.num_local + 1),
            "sources": 8 * g.num_ranks, "out_ids": choices, "out_weights": choices,
            "out_places": choices, "out_tokens": 4 * g.slots, "slots": 0,
        }  # fmt: skip
        return laid(sizes, 16)[0]

    def _by_rank(self, m: PeerPlaces, half: int) -> tuple[Tensor, Tensor | None]:
        """Return rows by rank, and their scales: of few, or where peers write them."""
        g = self.geometry
        sizes = {"rows": g.slots * g.row_bytes, "scales": g.slots * g.scale_bytes}
        if has_few(g):
            rows, scales = (self.memory.new_empty(size) for size in sizes.values())
        else:
            rows, scales = (
                self.memory[half * m.half + m.at[name] :][:size]
                for name, size in sizes.items()
            )
        kind = torch.float8_e4m3fn if g.quantise else self._kind
        rows = rows.view(kind).view(g.num_ranks, g.max_tokens, g.hidden)
        if not g.quantise:
            return rows, None
        return rows, scales.view(torch.float32).view(g.num_ranks, g.max_tokens, -1)

    # Calls.

    def dispatch(self, x: Tensor, ids: Tensor, weights: Tensor | None) -> GpuDispatched:
        """Enqueue a dispatch on the current stream."""
        g = self.geometry
        self._require_no_gradients("dispatch", x, weights)
        has_rows = isinstance(x, Tensor) and x.dim() > 0
        tokens = x.shape[0] if has_rows else 0
        shape_of_x = (tokens if has_rows else "T", g.hidden)
        self._check(x, "dispatch: x", shape_of_x, self._kind)
        if tokens > g.max_tokens:
            raise self._refused(
                f"dispatch: {tokens} tokens; want at most max_tokens={g.max_tokens}"
            )
        self._check(ids, "dispatch: ids", (tokens, g.top_k), torch.int64)
        if weights is not None:
            shape = tokens, g.top_k
            self._check(weights, "dispatch: weights", shape, torch.float32)
        self.follow()
        sent = GpuDispatched(self, x, ids, weights)
        self.half = 1 - self.half
        base, scales = sent.words.data_ptr(), sent.scales
        at = self.words
        self._dispatch(
            DispatchCall.of(
                self._there.pointer, self._there.epochs, x.data_ptr(), ids.data_ptr(),
                0 if weights is None else weights.data_ptr(), base + at["slots"],
                sent.rows.data_ptr(), 0 if scales is None else scales.data_ptr(),
                base + at["out_ids"], base + at["out_weights"],
                base + at["out_places"], base + at["out_tokens"],
                base + at["counts"], base + at["starts"], base + at["sources"],
                self._blocks_at, tokens, self.comm.rank, self.num_local, sent.half,
            )
        )  # fmt: skip
        return sent

    def combine(
        self, rows: Tensor, sent: GpuDispatched, weights: Tensor | None, *,
        summed: bool = False, out: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Enqueue a combine on the current stream; `summed`: without weights."""
        g = self.geometry
        if getattr(sent, "geometry", None) is not g:
            raise self._refused("combine: want `sent` of a dispatch of these experts")
        self._require_no_gradients("combine", rows, weights)
        self._check(rows, "combine: rows", sent.rows.shape, self._kind)
        of_tokens = g.order == "k"
        if weights is not None:
            shape = (sent.tokens, g.top_k) if of_tokens else sent.weights.shape
            self._check(weights, "combine: weights", shape, torch.float32)
        at = 0 if weights is None else weights.data_ptr()
        if weights is None and not summed:
            own = sent.own_weights
            of_own = 0 if own is None else own.data_ptr()
            at = of_own if of_tokens else sent.at("out_weights")
        self.follow()
        if out is None:
            out = rows.new_empty((sent.tokens, g.hidden))
        base, places = sent.words.data_ptr(), self.words
        self._combine(
            CombineCall.of(
                self._back.pointer, self._back.epochs, rows.data_ptr(),
                base + places["sources"],
                base + places["out_ids"], 0 if of_tokens else at,
                base + places["out_places"], base + places["out_tokens"],
                base + places["slots"], sent.own_ids.data_ptr(),
                at if of_tokens else 0, out.data_ptr(),
                self._there.epochs, self._blocks_at, sent.tokens, self.comm.rank,
            )
        )  # fmt: skip
        return out

    # Beside what the caller's stream does.

    def aside(self) -> Any:
        """Return a stream for an operation that is started, after the current."""
        self.follow()
        if self._side is None:
            self._side = torch.cuda.Stream()
        self._side.wait_stream(torch.cuda.current_stream())
        self._aside = True
        return self._side

    def follow(self) -> None:
        """Let the current stream go on after what was started: one is under way."""
        if not self._aside:
            return
        current = torch.cuda.current_stream()
        if current != self._side:
            current.wait_stream(self._side)
            self._aside = False

    def _check(
        self, given: Any, what: str, shape: tuple[int | str, ...], kind: torch.dtype
    ) -> None:
        fits = (
            isinstance(given, Tensor)
            and given.dtype is kind
            and given.get_device() == self._ordinal
            and given.shape == shape
            and given.is_contiguous()
        )
        if not fits:
            got = type(given).__name__
            if isinstance(given, Tensor):
                got = f"{tuple(given.shape)} {given.dtype} on {given.device}"
            wanted = " x ".join(map(str, shape))
            raise self._refused(
                f"{what} is {got}; want {wanted} {kind}, contiguous, on "
                f"{self.memory.device}"
            )

    def _require_no_gradients(self, what: str, *given: Any) -> None:
        if wants_gradients(*given):
            raise self._refused(
                f"{what}: tensors that autograd follows; on GPUs nothing goes back "
                "through experts: want torch.no_grad(), or device='cpu'"
            )

    def _refused(self, text: str) -> CallError:
        """Return what to raise here; the other ranks hear it where they wait."""
        error = self.comm.refuse(text)
        return error if isinstance(error, CallError) else CallError(str(error))


def enqueued(engine: GpuExperts, work: Callable[..., Any], *given: Any) -> Any:
    """Enqueue an operation beside the current stream; return what waits for it.

    The host never does: the stream that is current then goes on after it. What is given
    may be dropped at once: its memory is nobody else's until the operation has ended.
    """
    side = engine.aside()
    with torch.cuda.stream(side):
        made = work(*given)
    for tensor in _tensors(given):
        tensor.record_stream(side)

    def wait() -> Any:
        engine.follow()
        for tensor in _tensors([made]):
            tensor.record_stream(torch.cuda.current_stream())
        return made

    return wait


def _tensors(several: Iterable[Any]) -> Iterator[Tensor]:
    """Yield what tensors, and what dispatches brought, have in memory of PyTorch's."""
    for one in several:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, GpuDispatched):
            yield from one.tensors()
