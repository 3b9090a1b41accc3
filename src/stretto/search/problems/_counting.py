"""How long a weave takes, counted: streams, one link, one processor, a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stretto.compiler.weaves import MEETS, PlacedStep, WeaveStep

__all__ = ["COSTS", "WeaveCosts", "counted"]


@dataclass(frozen=True, slots=True)
class WeaveCosts:
    """What things take, in microseconds: of a whole share, and of each step."""

    move_us: float
    """A share, by the link."""
    do_us: float
    """A share, computed in one piece."""
    back_us: float = 0.0
    """A result, by the link."""
    store_us: float = 0.0
    meet_us: float = 6.0
    copy_us: float = 3.0
    kernel_us: float = 4.0
    """What a kernel loses at its start and end."""
    host_us: float = 8.0
    """What a step takes the host, unless it is in a graph."""
    chain: bool = False
    """Whether a share is one part's."""

    def of(self, step: WeaveStep, parts: int) -> float:
        """Return how long a step takes."""
        if step.do in MEETS:
            return self.meet_us
        if step.do == "store" or step.box is None:
            return self.store_us + self.kernel_us
        share = len(step.box.cells) / (1 if self.chain else parts)
        many = step.box.high - step.box.low + 1
        if step.do == "do":
            return share * self.do_us + many * self.kernel_us
        whole = self.back_us if step.do == "send" else self.move_us
        return share * whole + many * self.copy_us


_LINK, _MATMUL, _ATTENTION, _COPY = 370e3, 650e6, 450e6, 2e6
"""Bytes and operations a microsecond: those of an H200, its links, its memory."""
_HIDDEN, _TOKEN, _KEYS = 8192, 4096, 8192
"""Columns of what `torch.weaving.loads` moves: of matmuls, of experts, of a layer."""


def _gather(ranks: int, tokens: int, width: int) -> WeaveCosts:
    nbytes = tokens / ranks * 2 * _HIDDEN
    return WeaveCosts(nbytes / _LINK, nbytes * width / _MATMUL, store_us=nbytes / _COPY)


def _scatter(ranks: int, tokens: int, width: int) -> WeaveCosts:
    nbytes = tokens / ranks * 2 * _HIDDEN
    return WeaveCosts(0, nbytes * width / _MATMUL, back_us=nbytes / _LINK)


def _attention(ranks: int, tokens: int, width: int) -> WeaveCosts:
    part = tokens / ranks
    return WeaveCosts(part * 4 * width / _LINK, 4 * part * part * width / _ATTENTION)


def _experts(ranks: int, tokens: int, width: int) -> WeaveCosts:
    rows = 2 * tokens / ranks * 2 / (ranks + 1)  # to rank 0, asked for twice as often
    moved = rows * 2 * _TOKEN / _LINK
    done = rows * 4 * _TOKEN * width / _MATMUL
    return WeaveCosts(moved, done, back_us=moved, kernel_us=16.0)  # four matmuls


def _layers(ranks: int, tokens: int, width: int) -> WeaveCosts:
    done = 2 * tokens * _TOKEN * (_KEYS + 2 * width) / _MATMUL
    return WeaveCosts(0, done, back_us=tokens * 2 * _KEYS / _LINK, chain=True)


COSTS: Mapping[str, Callable[[int, int, int], WeaveCosts]] = {
    "gemm_all_gather": _gather,
    "gemm_reduce_scatter": _scatter,
    "all_gather_attention": _attention,
    "moe_dispatch_combine": _experts,
    "kv_transfer": _layers,
}
"""By load: what its parts take, of so many ranks, tokens and columns."""


def counted(
    steps: Sequence[PlacedStep], parts: int, costs: WeaveCosts, *, graph: bool = False
) -> float:
    """Return microseconds from start to end, of ranks that are all alike."""
    host = 0.0
    ends: list[float] = []
    streams: dict[str, float] = {}
    free = {"link": 0.0, "processor": 0.0}
    for step, waits in steps:
        host += 0.5 if graph else costs.host_us
        begin = max(host, streams.get(step.stream, 0.0), *(ends[k] for k in waits), 0.0)
        what = {"do": "processor", "push": "link", "pull": "link", "send": "link"}.get(
            step.do
        )
        if what:
            begin = max(begin, free[what])
        end = begin + costs.of(step, parts)
        if what:
            free[what] = end
        streams[step.stream] = end
        ends.append(end)
    return max(streams.values(), default=0.0)
