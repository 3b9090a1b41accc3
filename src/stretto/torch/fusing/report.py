"""What a fusion did, and what it left alone and why."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

_log = logging.getLogger("stretto.torch")


@dataclass
class FuseReport:
    """Counts and reasons; a compiled model's grow when it is compiled."""

    fused: int = 0
    """Norms that are part of an all_reduce now."""
    layers: int = 0
    """Layers that hold back their sums, of a model that is not compiled."""
    calls: int = 0
    """Fused calls made so far, of a model that is not compiled."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Where something was left alone, and why."""

    def refuse(self, where: str, why: str) -> None:
        """Note what stays as it was."""
        if (where, why) not in self.refused:
            self.refused.append((where, why))
            _log.info("not fused: %s: %s", where, why)

    def __str__(self) -> str:
        """Return a line for everything."""
        lines = [f"{self.fused} norms fused with their all_reduce"]
        return "\n".join(lines + [f"{w}: left alone: {y}" for w, y in self.refused])
