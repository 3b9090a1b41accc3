"""What agents do.

Each action is a tuple: its kind, the number of its event, and

LOAD    ((cell, tag), ...), where to keep their combination (NOWHERE: not at all)
STORE   cell, tag, whether to divide, where the value was kept
SIGNAL  channel, value, whether it releases
WAIT    channel, value
MEET    a key, how many agents meet
GIVE    cell, value
TAKE    cell, a `Want`
"""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = [
    "GIVE", "LOAD", "MEET", "NOWHERE", "SIGNAL", "STORE", "TAKE", "WAIT", "Action",
]  # fmt: skip

LOAD, STORE, SIGNAL, WAIT, MEET, GIVE, TAKE = range(7)
NOWHERE = -1
Action: TypeAlias = tuple[Any, ...]
