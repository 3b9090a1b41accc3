"""Ranks that load compiled code: nobody waits in vain for one that compiles it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Exchanging(Protocol):
    """Ranks, as far as they can be waited for."""

    deadline_s: float

    def exchange(self, small: Mapping[str, Any]) -> Any:
        """Give a small part, and return all ranks' (collective)."""


COMPILING_S = 600.0
"""How long a rank may compile while others wait for it, if no deadline is longer."""


def await_compiled(group: Exchanging) -> None:
    """Wait until all ranks have compiled what they need (collective).

    It takes 10 to 30 s, once for a processor, which no deadline is for. Who dies
    meanwhile is noticed as ever; who has closed is waited for no longer.
    """
    before = group.deadline_s
    group.deadline_s = max(before, COMPILING_S)
    try:
        group.exchange({})
    finally:  # it may have become shorter meanwhile
        group.deadline_s = min(before, group.deadline_s)


def load_together(group: Exchanging, load: Callable[[], object]) -> None:
    """Load compiled code on all ranks; nobody waits in vain for one that compiles.

    All have come before anybody compiles (collective): who does not come is missed.
    """
    group.exchange({})
    load()
    await_compiled(group)
