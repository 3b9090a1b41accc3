"""How long a weave takes, counted: streams, one link, one processor, a host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.compiler.weaves import MEETS, PlacedStep, WeaveStep

__all__ = ["WeaveCosts", "counted"]


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
