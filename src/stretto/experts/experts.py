"""What users have: experts of a communicator, and their two operations, in halves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.arrays import CPU, GPU, host_view
from stretto.errors import CallError, StrettoError
from stretto.experts import traced
from stretto.experts.cpu import CpuExperts, ReceivedRows, Underway
from stretto.experts.elements import STORED
from stretto.experts.geometry import Geometry, unlike
from stretto.experts.names import named
from stretto.experts.proof import check_received
from stretto.runtime.calls import Communicator

__all__ = ["Dispatched", "Experts", "Underway"]


_Make = Callable[[NDArray[Any], str], Any]
"""Makes an array of a library, of our elements of a type."""


class Dispatched:
    """What a dispatch brought: rows for this rank's experts, and how they go back."""

    def __init__(self, received: ReceivedRows, geometry: Geometry, made: _Make) -> None:
        """Show what was received as arrays of a library."""
        g = geometry
        rows, scales = received.rows, received.scales
        if g.layout == "rank":
            by_rank = g.num_ranks, g.max_tokens, -1
            rows = rows.reshape(by_rank)
            scales = None if scales is None else scales.reshape(by_rank)
        self.received, self.geometry = received, geometry
        self.rows = made(rows, "float8_e4m3fn" if g.quantise else g.dtype)
        """Layout "expert": those of each expert, one after the other, each aligned;
        "token": in order of ranks and their tokens; "rank": n x max_tokens, likewise.
        Zeros fill up experts; behind the rows of a rank may be anything."""
        self.scales = None if scales is None else made(scales, "float32")
        self.ids = made(received.ids, "int32")
        """Of each row that came: its experts of this rank, by their number here, or -1.
        """
        self.weights = made(received.weights, "float32")
        self.counts = made(received.counts, "int64")
        """How many rows each expert of this rank has."""
        self.starts = made(received.starts, "int64")
        """Where the rows of each begin in layout "expert", and where all end."""
        self.sources = made(received.sources, "int64")
        """How many rows came from each rank."""

    def counts_host(self) -> list[int]:
        """Return how many rows each expert of this rank has; waits, on a GPU."""
        return [int(count) for count in self.received.counts]


class Experts:
    """Experts on the ranks of a communicator: tokens go there, and their sums back."""

    def __init__(
        self, comm: Communicator, num_experts: int, top_k: int, hidden: int,
        max_tokens: int, *, layout: str = "expert", quantise: str | None = None,
        align: int = 1, order: str = "rank", placement: Sequence[int] | None = None,
        dtype: str = "bfloat16", check: bool = False, device: str = CPU,
        **tuning: int,
    ) -> None:  # fmt: skip
        """Agree with the other ranks, and make memory (collective).

        `quantise` is "fp8_128", or "fp8_128_pow2" for scales that are powers of two.
        `align`: each expert's rows begin at a multiple of it, in layout "expert".
        `order` is that of sums: "k" adds a token's choices as one rank would, whatever
        the placement; "rank" adds each rank's first, and moves fewer rows. `placement`
        has the rank of each expert; by default they are in equal blocks. With `check`
        each dispatch is checked to lose and double nothing. On a `device` "cuda",
        `blocks` and `threads` may be said.
        """
        self.comm, self.check = comm, check
        self.distinct = False
        """Whether a token that names an expert twice is refused, on CPUs."""
        refused, of = "", dict[str, Any]()
        try:
            self.geometry = Geometry.of(
                comm.num_ranks, placement, num_experts=num_experts, top_k=top_k,
                hidden=hidden, max_tokens=max_tokens, dtype=dtype, layout=layout,
                quantise=quantise, align=align, order=order,
            )  # fmt: skip
            of = self.geometry.said()
        except (StrettoError, TypeError, ValueError) as e:
            refused = f"rank {comm.rank}: experts: {e}"
        said = comm.all_gather_object([refused, of])
        if why := next((why for why, _ in said if why), ""):
            raise CallError(why)
        if why := unlike([one for _, one in said]):
            raise CallError(f"experts: {why}")
        self.engine: Any
        """What runs both operations."""
        if device == GPU:
            from stretto.experts.gpu import GpuExperts

            self.engine = GpuExperts(comm, self.geometry, **tuning)
        else:
            self.engine = CpuExperts(comm, self.geometry)
        self.name = named(self)
        """What compiled code knows it by."""

    def dispatch(self, x: Any, ids: Any, weights: Any = None) -> Any:
        """Give each token to the ranks of its experts (collective).

        `x` is T x hidden, `ids` T x top_k experts, -1 for none; an expert may be there
        twice. `weights`, T x top_k, go with them. T is each rank's own, from 0 to
        max_tokens. Where rows are quantised, on CPUs, `x` may be a pair: rows that are
        fp8 already, and their scales.
        """
        if self.on_gpu:
            return self.engine.dispatch(x, ids, weights)
        if _is_tensor(x) or _is_tensor(weights):
            from stretto.experts import operators, tensors

            if _is_tensor(x) and operators.in_graph():
                return operators.dispatched(self, x, ids, weights)
            if tensors.wants_gradients(x, weights):
                return tensors.dispatched(self, x, ids, weights)
        return self.plain_dispatch(x, ids, weights)

    def plain_dispatch(self, x: Any, ids: Any, weights: Any) -> Dispatched:
        """Dispatch where nobody wants gradients."""
        sent: Dispatched = self.start_dispatch(x, ids, weights, False).wait()
        return sent

    def start_dispatch(
        self, x: Any, ids: Any, weights: Any = None, background: bool = True
    ) -> Underway:
        """Start a dispatch: rows are on their way when this returns.

        `x` is to stay as it is until `wait`: this rank's own rows are read then.
        """
        if self.on_gpu:
            return self._aside(self.engine.dispatch, x, ids, weights)
        make, since = _maker(x), time.monotonic_ns()
        check = partial(check_received, self.comm, self.geometry)
        pending = self.engine.dispatch(
            lambda: self._tokens(x, ids, weights), background=background,
            check=check if self.check else None,
        )  # fmt: skip

        def finish() -> Dispatched:
            received = pending.wait()
            traced.dispatched(self, received, since)
            return Dispatched(received, self.geometry, make)

        return Underway(finish)

    def combine(self, rows: Any, sent: Any, weights: Any = None) -> Any:
        """Give each token the sum of its experts' rows (collective): T x hidden.

        `rows` lie as those of the dispatch. In layout "expert" each is multiplied by
        its weight: the dispatch's, or `weights`, which are of this rank's choices
        (as `sent.weights`) in order "rank", and of its tokens' (T x top_k) in order
        "k". In the other layouts rows are sums already.
        """
        if self.on_gpu:
            return self.engine.combine(rows, sent, weights)
        if _is_tensor(rows):
            from stretto.experts import operators, tensors

            if operators.in_graph():
                return operators.combined(self, rows, sent, weights)
            followed = rows, getattr(sent, "weights", None)
            if weights is None and tensors.wants_gradients(*followed):
                return tensors.combined(self, rows, sent)
        return self.plain_combine(rows, sent, weights)

    def plain_combine(self, rows: Any, sent: Dispatched, weights: Any) -> Any:
        """Combine where nobody wants gradients."""
        return self.start_combine(rows, sent, weights, False).wait()

    def start_combine(
        self, rows: Any, sent: Dispatched, weights: Any = None, background: bool = True
    ) -> Underway:
        """Start a combine: rows are on their way back when this returns."""
        if self.on_gpu:
            return self._aside(self.engine.combine, rows, sent, weights)
        make, g, since = _maker(rows), self.geometry, time.monotonic_ns()
        pending = self.engine.combine(
            sent.received, lambda: self._rows(rows, sent, weights), order=g.order,
            background=background,
        )  # fmt: skip

        def finish() -> Any:
            out = pending.wait()
            traced.combined(self, sent.received, since)
            return make(out, g.dtype)

        return Underway(finish)

    @property
    def on_gpu(self) -> bool:
        """Whether these are experts on GPUs."""
        return not isinstance(self.engine, CpuExperts)

    def _aside(self, work: Callable[..., Any], *given: Any) -> Underway:
        """Enqueue an operation on a stream of its own."""
        from stretto.experts.gpu import enqueued

        return Underway(enqueued(self.engine, work, *given))

    # What is passed, as loops take it.

    def _tokens(
        self, x: Any, ids: Any, weights: Any
    ) -> tuple[Any, NDArray[np.int64], NDArray[np.float32]]:
        g, where = self.geometry, f"rank {self.comm.rank}: dispatch"
        if isinstance(x, tuple):
            rows: Any = self._made_fp8(x, where)
            tokens = int(rows[0].shape[0])
        else:
            rows = self._elements(x, f"{where}: x", (None, g.hidden))
            tokens = int(rows.shape[0])
        if tokens > g.max_tokens:
            raise CallError(
                f"{where}: {tokens} tokens; want at most max_tokens={g.max_tokens}"
            )
        chosen, _ = host_view(ids, f"{where}: ids", swapped=True)
        if chosen.dtype.kind not in "iu" or chosen.shape != (tokens, g.top_k):
            raise CallError(
                f"{where}: ids of shape {chosen.shape} {chosen.dtype}; want whole "
                f"numbers, {tokens} x {g.top_k}"
            )
        plain = np.ascontiguousarray(chosen, np.int64)
        if self.distinct:
            _require_distinct(plain, where)
        if weights is None:
            return rows, plain, np.ones(plain.shape, np.float32)
        return rows, plain, _weights(weights, f"{where}: weights", plain.shape)

    def _rows(
        self, rows: Any, sent: Dispatched, weights: Any
    ) -> tuple[NDArray[Any], NDArray[np.float32] | None, str]:
        g, where = self.geometry, f"rank {self.comm.rank}: combine"
        if not isinstance(sent, Dispatched) or sent.geometry is not g:
            raise CallError(f"{where}: want `sent` of a dispatch of these experts")
        received = sent.received
        shape: tuple[int, ...] = (received.rows.shape[0], g.hidden)
        if g.layout == "rank":
            shape = (g.num_ranks, g.max_tokens, g.hidden)
        plain = self._elements(rows, f"{where}: rows", shape).reshape(-1, g.hidden)
        of = received.routing.weights if g.order == "k" else received.weights
        if weights is not None and g.layout != "expert":
            raise CallError(
                f"{where}: weights with layout={g.layout!r}, whose rows are sums "
                "already; want none"
            )
        if weights is not None:
            of = _weights(weights, f"{where}: weights", of.shape)
        return plain, of, g.dtype

    def _made_fp8(self, x: tuple[Any, ...], where: str) -> tuple[NDArray[Any], ...]:
        """Return rows that came as fp8, and their scales."""
        g = self.geometry
        if not g.quantise or len(x) != 2:
            raise CallError(
                f"{where}: x of {len(x)} arrays with quantise={g.quantise or None!r}; "
                "want one, or fp8 rows and their scales where rows are quantised"
            )
        (rows, kind), (scales, of_scales) = (host_view(a, f"{where}: x") for a in x)
        wide = g.scale_bytes // 4
        is_fp8 = kind in ("uint8", "float8_e4m3fn") and of_scales == "float32"
        if not is_fp8 or (rows.shape, scales.shape) != (
            (*rows.shape[:1], g.hidden), (*rows.shape[:1], wide)
        ):  # fmt: skip
            raise CallError(
                f"{where}: x of shape {rows.shape} {kind} and {scales.shape} "
                f"{of_scales}; want T x {g.hidden} fp8 and T x {wide} float32"
            )
        return np.ascontiguousarray(rows).view(np.uint8), np.ascontiguousarray(scales)

    def _elements(
        self, given: Any, what: str, shape: tuple[int | None, ...]
    ) -> NDArray[Any]:
        """Return rows as loops take them."""
        g = self.geometry
        view, name = host_view(given, what)
        if name == STORED[g.dtype] == "uint16":
            name = g.dtype  # raw bits
        wrong = len(view.shape) != len(shape) or any(
            want not in (None, got) for want, got in zip(shape, view.shape, strict=True)
        )
        if name != g.dtype or wrong:
            wanted = " x ".join("T" if one is None else str(one) for one in shape)
            raise CallError(
                f"{what} of shape {view.shape} {name}; want {wanted} {g.dtype}"
            )
        return np.ascontiguousarray(view).view(STORED[g.dtype])


def _weights(given: Any, what: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    view, name = host_view(given, what)
    if name != "float32" or view.shape != shape:
        wanted = " x ".join(map(str, shape))
        raise CallError(f"{what} of shape {view.shape} {name}; want {wanted} float32")
    return np.ascontiguousarray(view)


def _require_distinct(ids: NDArray[np.int64], where: str) -> None:
    """Refuse a token that names an expert twice."""
    ordered = np.sort(ids, axis=1)
    twice = np.argwhere((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0))
    if twice.size:
        t, j = twice[0]
        raise CallError(
            f"{where}: ids[{t}] has expert {ordered[t, j]} twice; want different "
            "experts where each has room for a row of every token"
        )


def _is_tensor(given: Any) -> bool:
    return type(given).__module__ == "torch" or hasattr(given, "data_ptr")


def _maker(given: Any) -> _Make:
    """Return how results are made for who passes such arrays."""
    if _is_tensor(given[0] if isinstance(given, tuple) and given else given):
        from stretto.experts.tensors import made

        return made
    return _of_numpy


def _of_numpy(array: NDArray[Any], dtype: str) -> Any:
    """Return an array of NumPy's: raw bits of what it lacks."""
    return array.view(np.float16) if dtype == "float16" else array
