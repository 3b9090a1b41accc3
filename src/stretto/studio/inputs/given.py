"""What a studio is given, before it is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stretto.program.ir import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedInputs:
    """What was named on the command line; nothing else is read."""

    recordings: tuple[Path, ...] = ()
    """Files, or folders of files; the second is compared with the first."""
    program: Program | None = None
    """Shown beside its plan and kernel; simulated where there is no recording."""
    source: str = ""
    """The Python file that the program came from, which is shown."""
    machine: str = ""
    """Where it ran or is simulated; else what the recording says."""
    nbytes: int = 1 << 20
    schedule: str = ""
    dtype: str = "float32"
    reports: tuple[Path, ...] = ()
    """What `stretto tune --report` wrote."""
    searches: tuple[Path, ...] = ()
    """Runs of `stretto search --db`, shown as they grow."""
