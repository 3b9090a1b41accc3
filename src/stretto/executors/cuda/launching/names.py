"""What launches are called: 32 bits that ranks compare, and words that people read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from stretto.compiler.plan import Plan
from stretto.executors.cuda.codegen.abi import mixed


class CallName(NamedTuple):
    """The name of a call, of a form of it, or of one of its parts."""

    fingerprint: int
    words: str

    def of_form(self, said: Sequence[int], words: str) -> CallName:
        """Return the name of a form of this call, by what its ranks agree on, too."""
        return CallName(mixed(self.fingerprint, tuple(said)), self.words + words)

    def of_second_part(self) -> CallName:
        """Return the name of what runs beside the part that has this one."""
        return CallName(self.fingerprint ^ 1 or 1, self.words)


def fingerprint(plan: Plan, dtype: str, op: str, counts: Sequence[int]) -> int:
    """Return 32 bits that calls of one kind share; not 0."""
    return fingerprint_of(f"{plan.digest} {dtype} {op} {tuple(int(c) for c in counts)}")


def fingerprint_of(text: str) -> int:
    """Return 32 bits of a text; not 0."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") or 1
