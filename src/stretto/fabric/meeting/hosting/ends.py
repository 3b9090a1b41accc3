"""What the hub needs of those at its ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from stretto.fabric.faults import Fault
from stretto.fabric.wire import Descriptor


class Closing(Protocol):
    """Something that is closed with the hub."""

    def close(self) -> None:
        """Close it."""


class Entrance(Protocol):
    """A way in for strangers, from the start until the meeting is settled."""

    def close(self, fault: Fault | None) -> None:
        """Let nobody in any more; `fault` is why there is no meeting, if so."""

    def forget(self) -> None:
        """Close this process's descriptors, and do nothing else."""


class RankEnd(Protocol):
    """What a rank is heard and told by: a connection, or a relay's part of one."""

    @property
    def is_sending(self) -> bool:
        """Whether something waits to be sent."""

    def post(
        self, body: Mapping[str, Any], descriptors: Iterable[Descriptor] = ()
    ) -> None:
        """Say something."""

    def trust(self) -> None:
        """Take longer frames from now on."""

    def close(self) -> None:
        """End it."""
