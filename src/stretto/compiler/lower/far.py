"""Between hosts: what a schedule may ask for.

A far step is a put (one source, one destination, a plain copy), a signal or a wait. So
what goes to another host is pushed into staging as plain data, and a signal follows,
whatever protocol serves peers on this host.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.compiler.plan import Schedule
from stretto.errors import CallError
from stretto.program.ir import Op, Program


def far_schedule(how: Schedule) -> Schedule:
    """Return how a value goes to another host where peers are served by `how`."""
    return replace(how, protocol="bulk", memory="staged", direction="push")


def refuse_far(program: Program, op: Op, how: Schedule, hosts: tuple[int, ...]) -> None:
    """Raise when a schedule has an operation reach into the memory of another host."""
    far = [s.rank for s in op.srcs if hosts[s.rank] != hosts[op.dst.rank]]
    if not far or (how.direction == "push" and how.memory == "staged"):
        return
    word = "pull" if how.direction == "pull" else how.memory
    phase = f"{op.phase}:push+staged" if op.phase else "push and staged"
    raise CallError(
        f"{program.place(op)}: {program.name}: rank {op.dst.rank} (host "
        f"{hosts[op.dst.rank]}) takes from rank {far[0]} (host {hosts[far[0]]}) under "
        f"{how}: {word} does not reach between hosts; want {phase}"
    )
