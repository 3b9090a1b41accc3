"""How a program is run: the same mathematics under another schedule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stretto.errors import CallError

DIRECTIONS = ("push", "pull")
PROTOCOLS = ("packets", "bulk", "engine")
MEMORIES = ("staged", "zero_copy", "across")
_CHOICES = {"direction": DIRECTIONS, "protocol": PROTOCOLS, "memory": MEMORIES}
_NUMBER = re.compile(r"0|[1-9][0-9]{0,12}")
_MOST = {"blocks": 1 << 16, "threads": 1 << 16, "tile_bytes": 1 << 40, "depth": 1 << 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Who moves the data, how they are announced, and how they are sliced.

    push: the owner writes to the reader's memory; pull: the reader reads the owner's.
    packets: data that announce themselves; bulk: plain data, then a signal; engine:
    copy engines move, then a signal.
    staged: peers touch only staging; zero_copy: they touch the caller's memory, which
    they map; across: the kernel copies from it or to it, between processes.
    """

    direction: str = "push"
    protocol: str = "bulk"
    memory: str = "staged"
    blocks: int = 1
    """Slices of every chunk that run side by side, each with flags of its own."""
    threads: int = 512
    """Threads of a block, on a GPU."""
    tile_bytes: int = 1 << 18
    """The largest part of a chunk's slice that one epoch moves."""
    depth: int = 4
    """Vector loads in flight per thread."""
    phases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """direction, protocol or memory of a named part of the program."""

    def __post_init__(self) -> None:
        """Refuse what is not a schedule."""
        for key, known in _CHOICES.items():
            _choose(key, getattr(self, key), known)
        for phase, changes in self.phases.items():
            for key, value in changes.items():
                if key not in _CHOICES:
                    raise CallError(f"phase {phase!r} cannot set {key!r}")
                _choose(key, value, _CHOICES[key])
        for key, most in _MOST.items():
            if not 1 <= getattr(self, key) <= most:
                raise CallError(
                    f"{key}={str(getattr(self, key))[:40]}; want at least 1, and at "
                    f"most {most}"
                )

    def of(self, phase: str) -> Schedule:
        """Return the schedule of one phase."""
        changes = self.phases.get(phase)
        return replace(self, phases={}, **changes) if changes else self  # type: ignore[arg-type]

    @property
    def zero_copy(self) -> bool:
        """Return whether peers touch the caller's memory in some phase: mapped."""
        return "zero_copy" in self._memories

    @property
    def across(self) -> bool:
        """Return whether the kernel copies between processes in some phase."""
        return "across" in self._memories

    @property
    def _memories(self) -> tuple[str, ...]:
        phases = (changes.get("memory", "") for changes in self.phases.values())
        return self.memory, *phases

    def __str__(self) -> str:
        """Return the text form, such as `push packets staged blocks=4`."""
        words = [self.direction, self.protocol, self.memory]
        words += [
            f"{key}={getattr(self, key)}"
            for key in ("blocks", "threads", "tile_bytes", "depth")
            if getattr(self, key) != Schedule.__dataclass_fields__[key].default
        ]
        for phase, changes in sorted(self.phases.items()):
            words.append(f"{phase}:{'+'.join(v for _, v in sorted(changes.items()))}")
        return " ".join(words)

    def __hash__(self) -> int:
        """Hash the text."""
        return hash(str(self))

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read a schedule back from its text.

        Words may come in any order, each once; what is not said is as by default.
        """
        fields: dict[str, object] = {}
        phases: dict[str, dict[str, str]] = {}
        for word in text.split():
            key, _, value = word.partition("=")
            if value:
                if key not in _MOST:
                    raise CallError(f"schedule word {word[:80]!r}: no such number")
                if not _NUMBER.fullmatch(value):
                    raise CallError(
                        f"schedule word {word[:80]!r}; want a whole number as 4"
                    )
                _once(fields, key, int(value), word)
            elif ":" in word:
                phase, _, values = word.partition(":")
                changes: dict[str, str] = {}
                for one in values.split("+"):
                    _once(changes, *_named(one), word)
                _once(phases, phase, changes, word)
            else:
                name, value = _named(word)
                _once(fields, name, value, word)
        return cls(phases=phases, **fields)  # type: ignore[arg-type]


def _once(said: dict[str, Any], key: str, value: Any, word: str) -> None:
    """Note what a word says, unless another has said it."""
    if key in said:
        raise CallError(f"schedule word {word[:80]!r}: {key[:40]} is given twice")
    said[key] = value


def _named(word: str) -> tuple[str, str]:
    for key, known in _CHOICES.items():
        if word in known:
            return key, word
    known_words = ", ".join(w for known in _CHOICES.values() for w in known)
    raise CallError(f"schedule word {word[:80]!r}; known: {known_words}")


def _choose(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise CallError(f"{key}={value!r}; want one of {', '.join(known)}")
