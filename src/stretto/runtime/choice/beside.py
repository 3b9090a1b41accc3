"""A pin that names nothing: what is chosen for a call that others run beside.

A kernel that waits for a late rank holds its SMs meanwhile. On many of them it keeps
out the very matmuls that the call was started to hide behind: so such a call has few
blocks, whatever would be fastest alone. A profile's rows `beside = true` say what was
measured so; where there are none, the usual choice gets few blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stretto.compiler.plan import Schedule

FEW_BLOCKS, FEW_FOR_BULK = 16, 24
"""Of a call that no row is about: by packets, and in bulk."""
MANY = 1 << 30
PACKETS_UP_TO = 2 << 20
"""Bytes of a full vector up to which such a call goes by packets."""
SMALL_BYTES = 256 << 10
"""Of a full vector up to which a call is soon over, however many blocks it has."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Asks for what leaves most of a GPU to others; all ranks ask alike."""

    most_blocks: int = 0
    """What the caller allows; 0: whatever was measured."""

    def schedule(self, chosen: Schedule, nbytes: int, *, measured: bool) -> Schedule:
        """Return the schedule that was chosen, on few blocks.

        Unless it was measured so: what is large is then bulk. Packets are sooner there
        and twice as long, which counts where few SMs send them.
        """
        if not measured and nbytes > SMALL_BYTES:
            blocks = chosen.blocks
            if chosen.protocol == "packets" and nbytes > PACKETS_UP_TO:
                chosen = Schedule(direction=chosen.direction, memory=chosen.memory)
            few = FEW_BLOCKS if chosen.protocol == "packets" else FEW_FOR_BULK
            chosen = replace(chosen, blocks=min(blocks, few))
        return replace(chosen, blocks=min(chosen.blocks, self.most_blocks or MANY))
