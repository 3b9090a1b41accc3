"""No congestion control: senders go at line rate, and switches pause links (PFC)."""

from __future__ import annotations

from stretto.topology.traffic import Congestion

__all__ = ["OFFER"]

OFFER = Congestion(name="pfc", about="line rate; switches pause links that fill them")
