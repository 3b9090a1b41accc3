"""What a carrier is: what it can, what is missing for it, and what it opens."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping

from stretto.errors import MissingExtraError
from stretto.fabric import tls
from stretto.fabric.hop.base import Abilities, Window
from stretto.fabric.hop.connections import Hop

_log = logging.getLogger("stretto.hop")


class Carrier(Abilities, ABC):
    """Carries bytes between hosts, by a library or a protocol, and says what it can.

    A folder here offers one, and so may an entry point of the group `stretto.carriers`.
    """

    def open_hop(self, window: Window) -> Hop:
        """Open a rank's way to its peers."""
        if why := self.missing():
            raise MissingExtraError(f"carrier {self.name}: {why}")
        if tls.is_asked() and not self.encrypted and window.rank == 0:
            _log.warning(
                "%s asks for TLS, and carrier %s sends in plain text: only the meeting "
                "is encrypted; `stretto doctor` says which carriers encrypt",
                tls.VARIABLE, self.name,
            )  # fmt: skip
        return self.new_hop(window)

    @abstractmethod
    def new_hop(self, window: Window) -> Hop:
        """Make a hop; it is not missing here."""

    def missing(self) -> str:
        """Return why it cannot be used here, or nothing; then it is ready at once."""
        return ""

    def doctor(self) -> Mapping[str, str]:
        """Return what this machine has for it, and what is missing, by subject."""
        why = self.missing()
        return {"ready": f"no: {why}" if why else "yes"}

    def examine(self) -> Mapping[str, str]:
        """Return what `doctor` says, and what the carrier can."""
        words = {
            "calls without Python": self.compiled,
            "puts straight into place": self.fields,
            "several lanes": self.lanes,
            "several rails": self.rails,
            "TLS": self.encrypted,
            "GPUDirect": self.device_memory,
        }
        return {
            **self.doctor(),
            "can": ", ".join(word for word, has in words.items() if has) or "puts",
            "cannot": ", ".join(word for word, has in words.items() if not has),
        }
