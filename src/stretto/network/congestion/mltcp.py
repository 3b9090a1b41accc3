"""MLTCP: who has sent more of its iteration grows faster, so that jobs take turns."""

from __future__ import annotations

from stretto.topology.traffic import Congestion, Parameter

__all__ = ["OFFER"]

_SLOPE, _OFFSET = 1.75, 0.25
_PAPER = "MLTCP, HotNets'24 (recalled)"
OFFER = Congestion(
    name="mltcp",
    about="increases grow with the share of the iteration's bytes that was sent",
    parameters=(
        Parameter(name="slope", value=_SLOPE, unit="", source=_PAPER),
        Parameter(name="offset", value=_OFFSET, unit="", source=_PAPER),
    ),
    slope=_SLOPE,
    offset=_OFFSET,
)
