"""Hosts whose processes die again and again: waited for, then left out for a while.

Events in, times out; nothing is asked of a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Flapping:
    """When a process may start again on a host."""

    first_s: float = 0.5
    """How long after the second loss in a row; it doubles with each that follows."""
    calm_s: float = 60.0
    """After so long without a loss, a host is as good as any."""
    most: int = 8
    """Losses in a row after which a host is left out."""
    out_s: float = 600.0
    """For how long."""
    _lost: dict[str, tuple[int, float]] = field(default_factory=dict)

    def lose(self, host: str, now: float) -> None:
        """Take note that a process has died there."""
        self._lost[host] = self._row(host, now) + 1, now

    def _row(self, host: str, now: float) -> int:
        row, last = self._lost.get(host, (0, 0.0))
        lasts = self.out_s if row >= self.most else self.calm_s
        return row if now < last + lasts else 0

    def from_when(self, host: str, now: float) -> float:
        """Return when something may start there again."""
        row, (_, last) = self._row(host, now), self._lost.get(host, (0, now))
        if row >= self.most:
            return last + self.out_s
        return last + self.first_s * 2 ** (row - 2) if row > 1 else now

    def refusal(self, host: str, now: float) -> str:
        """Return why nobody of that host is let in now, or nothing."""
        row = self._row(host, now)
        if row < self.most:
            return ""
        left_s = self.from_when(host, now) - now
        return (
            f"{row} processes on {host} died in a row; it is left out for {left_s:.0f} "
            "s more"
        )
