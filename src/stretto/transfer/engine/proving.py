"""How an engine and who comes to it prove that they know the secret; no I/O.

    door: challenge     comer: proof     door: proved

Each sends a number used once, and proves itself over both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.meeting.secret import is_proof, new_nonce, prove

__all__ = ["WORDS", "Proving"]

WORDS = {
    "late": "it has waited for long, and hung up: this process was too slow to say "
    "that it knows the secret; is it overloaded?",
    "full": "too many are at its door, and this was the oldest; try again",
    "secret": "it hung up: it does not know our secret, or is of another job",
}
"""Why a door hangs up on who has not proved anything: these words, and no others."""
_COMER, _DOOR = "transfer comer", "transfer door"


class Proving:
    """One end's part of it."""

    def __init__(self, secret: bytes, *, is_comer: bool) -> None:
        self._secret, self._is_comer = secret, is_comer
        self._mine, self._theirs = new_nonce(), ""
        self.is_done = False
        """Whether the other end has proved that it knows the secret."""
        self.word = ""
        """Of `WORDS`, why there will be no proof."""

    def challenge(self) -> dict[str, Any]:
        """Return what a door says first."""
        return {"say": "challenge", "nonce": self._mine}

    def heard(self, said: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what to answer, if anything; ValueError: it makes no sense."""
        what, nonce, mac = (str(said.get(name)) for name in ("say", "nonce", "mac"))
        if self._is_comer and what == "no" and said.get("why") in WORDS:
            self.word = str(said["why"])
            return None
        if self._is_comer and what == "challenge":
            self._theirs = nonce
            mac = prove(self._secret, _COMER, nonce, self._mine)
            return {"say": "proof", "nonce": self._mine, "mac": mac}
        if self._is_comer and what == "proved":
            if not is_proof(mac, self._secret, _DOOR, self._mine, self._theirs):
                raise ValueError("it does not know this job's secret")
            self.is_done = True
            return None
        if not self._is_comer and what == "proof":
            if not is_proof(mac, self._secret, _COMER, self._mine, nonce):
                self.word = "secret"
                return None
            self.is_done = True
            mac = prove(self._secret, _DOOR, nonce, self._mine)
            return {"say": "proved", "mac": mac}
        raise ValueError(f"it says {what[:40]!r}")
