"""Say something to whoever looks at a process, and go on even if nobody can.

A process may have no standard error (a daemon's is closed), or one whose reader is
gone. What is said there is never worth a call, a verdict or an end in order.
"""

from __future__ import annotations

import sys
from contextlib import suppress


def notify(text: str) -> None:
    """Write a line on standard error, if there is one that takes it."""
    if sys.stderr is None:
        return
    with suppress(OSError, ValueError):  # its reader is gone, or it is closed
        sys.stderr.write(f"stretto: {text}\n")
        sys.stderr.flush()
