"""Which weights: the epoch of the trainer that made them, and a counter in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stretto.errors import CallError

__all__ = ["Version"]

_EPOCH = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the weights. Versions of two epochs are neither older nor newer."""

    epoch: str
    counter: int

    def __post_init__(self) -> None:
        """Refuse what cannot be one."""
        if not isinstance(self.epoch, str) or not _EPOCH.fullmatch(self.epoch):
            raise CallError(
                f"epoch {str(self.epoch)[:80]!r}; want 1 to 64 letters, digits, '.', "
                "'_' or '-'"
            )
        is_number = isinstance(self.counter, int) and not isinstance(self.counter, bool)
        if not is_number or not 0 <= self.counter < 1 << 62:
            raise CallError(
                f"version {str(self.counter)[:40]!r}; want a whole number from 0 on"
            )

    def behind(self, other: Version) -> int:
        """Return how many versions it is behind another of its epoch.

        CallError: the other is of a foreign epoch, and so has no age.
        """
        if other.epoch != self.epoch:
            raise CallError(
                f"versions {self} and {other} are of two epochs: a foreign epoch has "
                "no age; adopt it first"
            )
        return other.counter - self.counter

    def is_in(self, other: Version | None) -> bool:
        """Return whether who has another one has had this: of one epoch, and as new."""
        return (
            other is not None
            and other.epoch == self.epoch
            and (other.counter >= self.counter)
        )

    def reaches(self, wanted: Version | int | None) -> bool:
        """Return whether it is as new as what is waited for; None is any."""
        if isinstance(wanted, Version):
            return wanted.behind(self) >= 0
        return wanted is None or self.counter >= wanted

    def __str__(self) -> str:
        """Return it for people: EPOCH:COUNTER."""
        return f"{self.epoch}:{self.counter}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Return the version of a text; CallError: it is none."""
        epoch, _, counter = str(text).rpartition(":")
        if not counter.isdecimal() or len(counter) > 19:
            raise CallError(f"{str(text)[:80]!r} is no version; want EPOCH:COUNTER")
        return cls(epoch, int(counter))
