"""Whether each rank has a core: hosts that are one machine's containers share them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def where() -> dict[str, Any]:
    """Return on which machine this process runs, and on which of its cores."""
    machine = ""
    with suppress(OSError):
        machine = _BOOT.read_text(encoding="ascii").strip()
    return {"machine": machine, "cores": _cores()}


def is_crowded(
    rank: int, said: Sequence[Mapping[str, Any]], hosts: Sequence[int]
) -> bool:
    """Return whether ranks exceed cores on a rank's machine, by what `where` said.

    Where a kernel has no name for itself, a host is a machine.
    """

    def machine(of: int) -> str | int:
        return str(said[of]["machine"]) or hosts[of]

    here = [of for of in range(len(said)) if machine(of) == machine(rank)]
    return len(here) > len({core for of in here for core in said[of]["cores"]})


def _cores() -> list[int]:
    """Return the cores this process may run on; launchers like to give it one."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
