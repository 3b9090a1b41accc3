"""What agents do.

Each action is a tuple: its kind, the number of its event, and

LOAD    ((cell, tag), ...), where to keep their combination (NOWHERE: not at all)
STORE   cell, tag, whether to divide, where the value was kept
SIGNAL  channel, value, whether it releases, the rank where that is on another host
PUT     cells, from and to, of ranks on different hosts; the rank that it goes to
WAIT    channel, value
MEET    a key, how many agents meet
GIVE    cell, value
TAKE    cell, a `Want`
"""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = [
    "GIVE", "LOAD", "MEET", "NOWHERE", "PUT", "SIGNAL", "STORE", "TAKE", "WAIT",
    "Action",
]  # fmt: skip

LOAD, STORE, SIGNAL, WAIT, MEET, GIVE, TAKE, PUT = range(8)
NOWHERE = -1
Action: TypeAlias = tuple[Any, ...]
