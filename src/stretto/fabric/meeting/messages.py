"""What ranks and the hub say to each other: one dataclass a message.

`to_body` and `from_body` turn them into JSON objects and back. Everything that
comes back is checked field by field, since it came from a socket: what is returned is a
message, or what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from stretto.fabric.messages import Message
from stretto.fabric.patience import LONGEST_S
from stretto.fabric.wire import Frame, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Message):
    """A member's part of an exchange within a group.

    What breaks the exchange breaks all of `fate`: the group, or the one it is part of.
    """

    group: str
    generation: int
    """In which the members' ranks are meant."""
    members: tuple[int, ...]
    fate: str
    fate_members: tuple[int, ...]
    tag: str
    payload: Any
    timeout_s: float
    survives: bool = False
    """Whether who is gone is not waited for: its part is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Message):
    """Everybody's part, in the group's order; `counts` descriptors from each."""

    group: str
    tag: str
    payloads: list[Any]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Message):
    """A member found a fault that all of its group must hear."""

    group: str
    generation: int
    members: tuple[int, ...]
    error: str
    text: str
    blamed: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Via(Message):
    """What a rank of another host says, or is told, through the relay of its host."""

    link: int
    """The relay's number for the rank's connection."""
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Message):
    """A rank's connection to the relay of its host has ended, or shall end."""

    link: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat(Message):
    """A relay is there; the hub answers with the same."""


def _ints(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(v) is int for v in value):
        raise TypeError
    return tuple(value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(type(v) is str for v in value):
        raise TypeError
    return tuple(value)


def _exactly(*kinds: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) not in kinds:  # so that True is no int
            raise TypeError
        return value

    return check


def _seconds(value: Any) -> float:
    number = _exactly(int, float)(value)
    if not 0 <= number <= LONGEST_S:
        raise TypeError
    return float(number)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": _exactly(int),
    "float": _seconds,
    "str": _exactly(str),
    "bool": _exactly(bool),
    "tuple[int, ...]": _ints,
    "tuple[str, ...]": _texts,
    "list[Any]": _exactly(list),
    "dict[str, Any]": _exactly(dict),
    "Any": lambda value: value,
}
_KINDS = {kind.__name__: kind for kind in Message.__subclasses__()}


def to_body(message: Message) -> dict[str, Any]:
    """Return the JSON object of a message."""
    return {"say": type(message).__name__, **asdict(message)}


def from_body(body: Mapping[str, Any]) -> Message | Refused:
    """Return the message of a JSON object, or why it is none of ours."""
    kind = _KINDS.get(str(body.get("say"))[:40])
    if kind is None:
        return Refused(why=f"no message is called {str(body.get('say'))[:40]!r}")
    found: dict[str, Any] = {}
    for field in fields(kind):
        try:
            found[field.name] = _READERS[str(field.type)](body[field.name])
        except (KeyError, TypeError):
            got = repr(body.get(field.name, "nothing"))[:40]
            name = f"{kind.__name__}.{field.name}"
            return Refused(why=f"{name} is {got}, not {field.type}")
    return kind(**found)


def read(frame: Frame | Refused) -> Message | Refused:
    """Return the message of what came, or why it is none."""
    return frame if isinstance(frame, Refused) else from_body(frame.body)
