"""What a fusion did, and what it left alone and why."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

_log = logging.getLogger("stretto.torch")
_NAMED = 3
"""Of what was left alone for one reason, so many are named."""


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
        """Note what stays as it was; the log says each reason once."""
        if (where, why) not in self.refused:
            if why not in self.kinds():
                _log.info("not fused: %s: %s", where, why)
            self.refused.append((where, why))

    def kinds(self) -> dict[str, list[str]]:
        """Return the reasons, and what was left alone for each."""
        found: dict[str, list[str]] = {}
        for where, why in self.refused:
            found.setdefault(why, []).append(where)
        return found

    def __str__(self) -> str:
        """Return a line for what was fused, and one for each reason why others not."""
        lines = [f"{self.fused} norms fused with their all_reduce"]
        for why, every in self.kinds().items():
            some = ", ".join(every[:_NAMED])
            more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
            lines.append(f"{some}{more}: left alone: {why}")
        return "\n".join(lines)
