"""The one handshake: two ends prove that they know a secret, and say who they are.

    comer: hail                         door: hail              both at once
    comer: proof, and who it is         door: proof, and who it is

A hail says the form of this talk, the byte order, what for, and a number used once. A
proof is over both hails, the role, and all that was said before it; the secret never
travels. Nothing that is said of anybody is looked at before it is proved, but a hail.

No I/O: bytes in, in any pieces, and bytes out. It ends with `theirs`, what the other
end says of itself, or with a `refusal` in words. No bytes raise anything.
"""

from __future__ import annotations

import hmac
import json
import secrets
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

WORDS = {
    "late": "it has waited for long, and hung up: this process was too slow to say "
    "that it knows the secret; is it overloaded?",
    "full": "too many are at its door, and this was the oldest; try again",
    "secret": "it has another secret; give all of a job the same one",
}
"""What is said to who has proved nothing: these words, and no others."""
_FORM = 1
_HEAD, _MAGIC = struct.Struct("!4scH"), b"STRH"
_HAIL, _PROOF, _REFUSAL, _NO = b"h", b"p", b"r", b"n"
_MOST, _MOST_NAMES, _MAC = 4096, 16, 32
_ROLES = {True: b"comer", False: b"door"}
_TLS = (b"\x15\x03", b"\x16\x03")
"""How what TLS sends begins: an alert, or its own hello."""


class Handshake:
    """One end of it."""

    def __init__(
        self, secret: bytes, purpose: str, says: Mapping[str, str | int], *,
        comes: bool, judge: Callable[[Mapping[str, Any]], str] = lambda theirs: "",
    ) -> None:  # fmt: skip
        """Say `says` of oneself.

        `judge` returns why who knows the secret may not come in all the same, or
        nothing. What it raises of odd values is such a reason.
        """
        self._secret, self._purpose, self._comes = secret, purpose, comes
        self._judge, self._nonce = judge, secrets.token_hex(32)
        self._text = _dump(says)
        hail = {"form": _FORM, "order": sys.byteorder, "purpose": purpose}
        self._hail = _dump({**hail, "nonce": self._nonce})
        self._said: tuple[bytes, ...] = ()
        """All that proofs are over, from the first word on; () before both hails."""
        self._heard = bytearray()
        self.theirs: Mapping[str, Any] | None = None
        """What the other end says of itself, once it has proved that it may."""
        self.refusal, self.word = "", ""
        """Why there will be no proof, and of `WORDS` which one says so, if one does."""

    @property
    def is_over(self) -> bool:
        """Return whether it has ended, either way."""
        return self.theirs is not None or bool(self.refusal)

    @property
    def want(self) -> int:
        """Return how many bytes to hear next: with no more, what follows is left."""
        size = _HEAD.size
        if len(self._heard) >= size:
            size += _HEAD.unpack_from(self._heard)[2]
        return max(1, size - len(self._heard))

    def begin(self) -> bytes:
        """Return what is said first, by either end, without waiting for the other."""
        return _frame(_HAIL, self._hail)

    def dismiss(self, word: str) -> bytes:
        """Refuse, with one of `WORDS`; return it for the other end."""
        self.word, self.refusal = word, WORDS[word]
        return _frame(_NO, word.encode())

    def hear(self, data: bytes) -> bytes:
        """Take what was heard; return what to answer, also when it is refused."""
        self._heard += data
        answer = b""
        while not self.is_over and (found := self._next()) is not None:
            answer += self._take(*found)
        return answer

    def _next(self) -> tuple[bytes, bytes] | None:
        """Return the kind and the text of the next message, once all of it is here."""
        heard = self._heard
        if not _MAGIC.startswith(heard[: len(_MAGIC)]):
            odd = bytes(heard[:8])
            why = f"it is none of ours: it begins with {odd!r}"
            if odd.startswith(_TLS):
                why = "it speaks TLS, and this process does not; set STRETTO_TLS alike"
            self.refusal = why
            return None
        if len(heard) < _HEAD.size:
            return None
        _, kind, length = _HEAD.unpack_from(heard)
        if length > _MOST:
            self._nonsense()
        if self.refusal or len(heard) < _HEAD.size + length:
            return None
        text = bytes(heard[_HEAD.size : _HEAD.size + length])
        del heard[: _HEAD.size + length]
        return kind, text

    def _take(self, kind: bytes, text: bytes) -> bytes:
        if kind == _HAIL and not self._said:
            return self._hailed(text)
        if kind == _PROOF and self._said:
            return self._proved(text)
        if kind == _REFUSAL and self._said and self._comes:
            return self._refused(text)
        word = text.decode("ascii", "replace")
        if kind == _NO and self._comes and word in WORDS:
            self.word, self.refusal = word, WORDS[word]
            return b""
        return self._nonsense()

    def _nonsense(self) -> bytes:
        self.refusal = "it says what makes no sense here"
        return b""

    def _hailed(self, text: bytes) -> bytes:
        said = _load(text)
        if said is None:
            return self._nonsense()
        order, purpose = str(said.get("order"))[:8], str(said.get("purpose"))[:40]
        if said.get("form") != _FORM or purpose != self._purpose:
            form = str(said.get("form"))[:8]
            self.refusal = (
                f"it speaks {purpose!r} ({form}), we speak {self._purpose!r} "
                f"({_FORM}); install one version of stretto for all"
            )
        elif order != sys.byteorder:
            self.refusal = f"its byte order is {order!r}, ours {sys.byteorder!r}"
        elif said.get("nonce") == self._nonce:
            self.refusal = "it says what we say: it is this very end"
        if self.refusal:
            return b""
        both = self._hail, text
        self._said = both if self._comes else both[::-1]
        return self._proof(_PROOF, self._text) if self._comes else b""

    def _mac(self, kind: bytes, by_comer: bool, text: bytes) -> bytes:
        parts = (b"stretto", kind, _ROLES[by_comer], *self._said, text)
        words = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._secret, words, "sha256")

    def _proof(self, kind: bytes, text: bytes) -> bytes:
        proof = self._mac(kind, self._comes, text) + text
        self._said = (*self._said, proof)
        return _frame(kind, proof)

    def _is_right(self, kind: bytes, proof: bytes) -> bool:
        right = self._mac(kind, not self._comes, proof[_MAC:])
        return hmac.compare_digest(proof[:_MAC], right)

    def _proved(self, proof: bytes) -> bytes:
        if not self._is_right(_PROOF, proof):
            answer = self.dismiss("secret")
            return b"" if self._comes else answer
        said = _load(proof[_MAC:])
        if said is None:
            return self._nonsense()
        self._said = (*self._said, proof)
        try:
            self.refusal = self._judge(said)
        except (KeyError, TypeError, ValueError) as e:
            self.refusal = f"what it says of itself makes no sense: {e!r:.100}"
        if self.refusal:
            why = self.refusal.encode("utf-8", "replace")[: _MOST - _MAC]
            return b"" if self._comes else self._proof(_REFUSAL, why)
        self.theirs = said
        return b"" if self._comes else self._proof(_PROOF, self._text)

    def _refused(self, proof: bytes) -> bytes:
        if not self._is_right(_REFUSAL, proof):
            self.dismiss("secret")
        else:
            self.refusal = f"it refuses us: {proof[_MAC:].decode('utf-8', 'replace')}"
        return b""


def _frame(kind: bytes, text: bytes) -> bytes:
    assert len(text) <= _MOST, "it is ours, and short"
    return _HEAD.pack(_MAGIC, kind, len(text)) + text


def _dump(said: Mapping[str, str | int]) -> bytes:
    return json.dumps(said).encode()


def _load(text: bytes) -> dict[str, Any] | None:
    """Return the names and values of a text; None when that is not what it is."""
    try:
        said = json.loads(text)
        json.dumps(said, ensure_ascii=False).encode()  # half a surrogate pair is none
    except (ValueError, RecursionError):
        return None
    is_plain = isinstance(said, dict) and len(said) <= _MOST_NAMES
    return said if is_plain and all(map(_is_value, said.values())) else None


def _is_value(value: Any) -> bool:
    return type(value) is str or (type(value) is int and abs(value) < 1 << 63)
