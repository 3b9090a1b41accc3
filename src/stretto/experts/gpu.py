"""Dispatch and combine on the GPUs of one host: a kernel each, nothing waits on a host.

What users get lies in memory of PyTorch's, in sizes that fit any routing; how much of
it is used says the device. Only rows of layout "rank" stay where they are until the
dispatch after the next: two may be open at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    text_of,
    why_not,
)
from stretto.runtime.calls import Communicator

__all__ = ["GpuDispatched", "GpuExperts", "enqueued"]

BLOCKS, THREADS = 32, 512
_TYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class GpuDispatched:
    """What a dispatch brought, on the device; as `Dispatched`, but for sizes.

    `rows` has room for any routing: how many there are of each expert say `counts`.
    """

    def __init__(
        self, engine: GpuExperts, x: Tensor, ids: Tensor, weights: Tensor | None
    ) -> None:
        """Have memory for what comes."""
        g = engine.geometry
        self.geometry, self.tokens = g, int(x.shape[0])
        self.own_ids, self.own_weights = ids, weights
        self._engine, self._device = engine, x.device
        self.half = engine.half
        where = engine.words
        nbytes = where["slots"] + 4 * self.tokens * g.num_ranks
        self.words = torch.empty(nbytes, dtype=torch.uint8, device=x.device)
        if g.layout == "rank":
            self.rows, self.scales = engine.rows_by_rank[self.half]
            return
        kind = torch.float8_e4m3fn if g.quantise else _TYPES[g.dtype]
        shape = engine.num_lines, g.hidden
        self.rows = torch.empty(shape, dtype=kind, device=x.device)
        self.scales = None
        if g.quantise:
            shape = engine.num_lines, g.scale_bytes // 4
            self.scales = torch.empty(shape, dtype=torch.float32, device=x.device)

    def tensors(self) -> list[Tensor]:
        """Return what is in memory of PyTorch's."""
        own = (
            [self.words] if self.geometry.layout == "rank" else [self.words, self.rows]
        )
        has_scales = self.scales is not None and self.geometry.layout != "rank"
        return [*own, self.scales] if has_scales else own

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
        slots = g.num_ranks * g.max_tokens
        return self._view("out_ids", torch.int32, slots, g.top_k)

    @property
    def weights(self) -> Tensor:
        """Of each row that came: the weights of its choices."""
        g = self.geometry
        slots = g.num_ranks * g.max_tokens
        return self._view("out_weights", torch.float32, slots, g.top_k)

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
        self, comm: Communicator, geometry: Geometry, *, blocks: int = BLOCKS,
        threads: int = THREADS,
    ) -> None:  # fmt: skip
        """Make memory that peers write, and compile (collective)."""
        if why := why_not(geometry):
            raise CallError(f"experts: {why}")
        self.comm, self.geometry = comm, geometry
        g, m = geometry, PeerPlaces.of(geometry, blocks)
        self.num_local = g.num_local(comm.rank)
        self.half = 0
        self._there = comm.channels(m.nbytes, blocks=blocks)
        self._back = comm.channels(m.back_nbytes, blocks=blocks)
        text = text_of(g, blocks, threads)
        self._dispatch, self._combine = (
            channels.kernel(
                f"{text}// {name}\n",
                f"stretto_{name}",
                threads=threads,
                options=OPTIONS,
            )
            for channels, name in ((self._there, "dispatch"), (self._back, "combine"))
        )
        self.memory = torch.from_dlpack(self._there.buffer)
        """What peers write of a dispatch."""
        device = self.memory.device
        self._blocks = torch.zeros(
            blocks * BLOCK_WORDS, dtype=torch.int64, device=device
        )
        self.num_lines = self._most_lines()
        self.words = self._places()
        """Where each table begins in the words of a dispatch."""
        self.rows_by_rank: list[Any] = []
        if g.layout == "rank":
            self.rows_by_rank = [self._by_rank(m, half) for half in range(2)]
        self._side: Any = None
        self._aside = False
        torch.cuda.synchronize()
        comm.barrier()

    def _most_lines(self) -> int:
        g = self.geometry
        slots = g.num_ranks * g.max_tokens
        if g.layout != "expert":
            return slots
        return slots * g.top_k + self.num_local * (g.align - 1)

    def _places(self) -> dict[str, int]:
        g, slots = self.geometry, self.geometry.num_ranks * self.geometry.max_tokens
        sizes = {
            "counts": 8 * self.num_local, "starts": 8 * (self.num_local + 1),
            "sources": 8 * g.num_ranks, "out_ids": 4 * slots * g.top_k,
            "out_weights": 4 * slots * g.top_k, "out_places": 4 * slots * g.top_k,
            "out_tokens": 4 * slots, "slots": 0,
        }  # fmt: skip
        places, at = {}, 0
        for name, size in sizes.items():
            places[name] = at
            at += -(-size // 16) * 16
        return places

    def _by_rank(self, m: PeerPlaces, half: int) -> tuple[Tensor, Tensor | None]:
        """Return rows by rank, and their scales: of few, or where peers write them."""
        g = self.geometry
        slots = g.num_ranks * g.max_tokens
        sizes = {"rows": slots * g.row_bytes, "scales": slots * g.scale_bytes}
        if has_few(g):
            rows, scales = (self.memory.new_empty(size) for size in sizes.values())
        else:
            rows, scales = (
                self.memory[half * m.half + m.at[name] :][:size]
                for name, size in sizes.items()
            )
        kind = torch.float8_e4m3fn if g.quantise else _TYPES[g.dtype]
        rows = rows.view(kind).view(g.num_ranks, g.max_tokens, g.hidden)
        if not g.quantise:
            return rows, None
        return rows, scales.view(torch.float32).view(g.num_ranks, g.max_tokens, -1)

    # Calls.

    def dispatch(self, x: Tensor, ids: Tensor, weights: Tensor | None) -> GpuDispatched:
        """Enqueue a dispatch on the current stream."""
        g = self.geometry
        self._require_no_gradients("dispatch", x, weights)
        self._check(x, "dispatch: x", (None, g.hidden), _TYPES[g.dtype])
        tokens = int(x.shape[0])
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
        call = DispatchCall(
            channels=self._there.pointer, x=x.data_ptr(), ids=ids.data_ptr(),
            weights=0 if weights is None else weights.data_ptr(),
            rows=sent.rows.data_ptr(), blocks=self._blocks.data_ptr(),
            scales=0 if sent.scales is None else sent.scales.data_ptr(), tokens=tokens,
            rank=self.comm.rank, locals=self.num_local, half=sent.half,
            **{name: sent.words.data_ptr() + at for name, at in self.words.items()},
        )  # fmt: skip
        self._dispatch(call)
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
        self._check(rows, "combine: rows", tuple(sent.rows.shape), _TYPES[g.dtype])
        of_tokens = g.order == "k"
        if weights is not None:
            shape = (sent.tokens, g.top_k) if of_tokens else tuple(sent.weights.shape)
            self._check(weights, "combine: weights", shape, torch.float32)
        at = 0 if weights is None else weights.data_ptr()
        if weights is None and not summed:
            own = sent.own_weights
            of_own = 0 if own is None else own.data_ptr()
            at = of_own if of_tokens else sent.at("out_weights")
        self.follow()
        if out is None:
            out = rows.new_empty((sent.tokens, g.hidden))
        call = CombineCall(
            channels=self._back.pointer, rows=rows.data_ptr(),
            sources=sent.at("sources"), ids=sent.at("out_ids"),
            weights=0 if of_tokens else at, places=sent.at("out_places"),
            tokens_of=sent.at("out_tokens"), slots=sent.at("slots"),
            own_ids=sent.own_ids.data_ptr(), own_weights=at if of_tokens else 0,
            out=out.data_ptr(), dispatches=self._there.pointer,
            blocks=self._blocks.data_ptr(), tokens=sent.tokens, rank=self.comm.rank,
        )  # fmt: skip
        self._combine(call)
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
        current = torch.cuda.current_stream()
        if self._aside and current != self._side:
            current.wait_stream(self._side)
            self._aside = False

    def _check(
        self, given: Any, what: str, shape: tuple[int | None, ...], kind: torch.dtype
    ) -> None:
        fits = (
            isinstance(given, Tensor)
            and given.device == self.memory.device
            and given.dtype == kind
            and given.dim() == len(shape)
            and all(w in (None, s) for w, s in zip(shape, given.shape, strict=True))
            and given.is_contiguous()
        )
        if not fits:
            got = type(given).__name__
            if isinstance(given, Tensor):
                got = f"{tuple(given.shape)} {given.dtype} on {given.device}"
            wanted = " x ".join("T" if one is None else str(one) for one in shape)
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

    The host never does: the stream that is current then goes on after it.
    """
    with torch.cuda.stream(engine.aside()):
        made = work(*given)

    def wait() -> Any:
        engine.follow()
        for one in made.tensors() if isinstance(made, GpuDispatched) else [made]:
            one.record_stream(torch.cuda.current_stream())
        return made

    return wait
