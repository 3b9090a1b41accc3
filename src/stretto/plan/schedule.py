"""How a program is run: the same mathematics under another schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stretto.errors import CallError

__all__ = ["DIRECTIONS", "MEMORIES", "PROTOCOLS", "Schedule"]

DIRECTIONS = ("push", "pull")
PROTOCOLS = ("packets", "bulk", "engine")
MEMORIES = ("staged", "zero_copy")
_CHOICES = {"direction": DIRECTIONS, "protocol": PROTOCOLS, "memory": MEMORIES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Who moves the data, how they are announced, and how they are sliced.

    push: the owner writes to the reader's memory; pull: the reader reads the owner's.
    packets: data that announce themselves; bulk: plain data, then a signal; engine:
    copy engines move, then a signal.
    staged: peers touch only staging; zero_copy: they touch the caller's memory.
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
        for key in ("blocks", "threads", "tile_bytes", "depth"):
            if getattr(self, key) < 1:
                raise CallError(f"{key}={getattr(self, key)}; want at least 1")

    def of(self, phase: str) -> Schedule:
        """Return the schedule of one phase."""
        changes = self.phases.get(phase)
        return replace(self, phases={}, **changes) if changes else self  # type: ignore[arg-type]

    @property
    def zero_copy(self) -> bool:
        """Return whether peers touch the caller's memory in some phase."""
        phases = (changes.get("memory", "") for changes in self.phases.values())
        return "zero_copy" in (self.memory, *phases)

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
        """Read a schedule back from its text; words may come in any order."""
        fields: dict[str, object] = {}
        phases: dict[str, dict[str, str]] = {}
        for word in text.split():
            key, _, value = word.partition("=")
            if value:
                if key not in ("blocks", "threads", "tile_bytes", "depth"):
                    raise CallError(f"schedule word {word!r}: no such number")
                if not (value.isascii() and value.isdigit() and len(value) < 19):
                    raise CallError(f"schedule word {word!r}; want a whole number")
                fields[key] = int(value)
            elif ":" in word:
                phase, _, values = word.partition(":")
                phases[phase] = dict(_named(v) for v in values.split("+"))
            else:
                name, value = _named(word)
                fields[name] = value
        return cls(phases=phases, **fields)  # type: ignore[arg-type]


def _named(word: str) -> tuple[str, str]:
    for key, known in _CHOICES.items():
        if word in known:
            return key, word
    known_words = ", ".join(w for known in _CHOICES.values() for w in known)
    raise CallError(f"schedule word {word!r}; known: {known_words}")


def _choose(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise CallError(f"{key}={value!r}; want one of {', '.join(known)}")
