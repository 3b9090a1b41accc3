"""How long one wait of an executor may last."""

from __future__ import annotations

from typing import Protocol


class HasDeadline(Protocol):
    """A group, as far as a wait is concerned."""

    deadline_s: float


class Patience:
    """One wait's deadline, asked between two looks at what is waited for.

    A deadline that becomes shorter (a member has closed: what it sent is there, or is
    on its way) counts from then on. And no wait is over that was not when last asked:
    what it waits for may have come with the news, or while this process stood still,
    and is looked for once more.
    """

    def __init__(self, group: HasDeadline) -> None:
        self._group = group
        self._deadline_s = group.deadline_s
        self._shorter_at_s = 0.0
        self._was_over = False

    def is_over(self, since_s: float, now_s: float) -> bool:
        """Whether a wait without progress since then has lasted too long."""
        deadline_s = self._group.deadline_s
        if deadline_s < self._deadline_s:
            self._shorter_at_s = now_s
        self._deadline_s = deadline_s
        was_over = self._was_over
        self._was_over = now_s - max(since_s, self._shorter_at_s) > deadline_s
        return was_over and self._was_over
