"""The facts of a recording as JSON, and back: each value of its type."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from stretto.errors import TraceError
from stretto.trace.tables import (
    CallKind,
    CodeLine,
    Comm,
    Dropped,
    LaneWait,
    RankInfo,
    Run,
)

T = TypeVar("T")
_MOST = 1 << 62
_LISTS: dict[str, Any] = {
    "ranks": RankInfo,
    "comms": Comm,
    "kinds": CallKind,
    "places": CodeLine,
    "dropped": Dropped,
    "waits": LaneWait,
}


@dataclasses.dataclass(slots=True)
class Facts:
    """What the chunks of a file have said so far."""

    ranks: list[RankInfo] = dataclasses.field(default_factory=list)
    comms: list[Comm] = dataclasses.field(default_factory=list)
    kinds: list[CallKind] = dataclasses.field(default_factory=list)
    places: list[CodeLine] = dataclasses.field(default_factory=list)
    dropped: list[Dropped] = dataclasses.field(default_factory=list)
    waits: list[LaneWait] = dataclasses.field(default_factory=list)
    run: Run = dataclasses.field(default_factory=Run)


def spell_facts(facts: Facts) -> dict[str, Any]:
    """Return facts as JSON has them; nothing of lists that are empty."""
    said: dict[str, Any] = {
        name: [dataclasses.asdict(one) for one in getattr(facts, name)]
        for name in _LISTS
        if getattr(facts, name)
    }
    if facts.run != Run():
        said["run"] = dataclasses.asdict(facts.run)
    return said


def read_facts(document: Mapping[str, Any], where: str, into: Facts) -> None:
    """Add what a chunk says. Lists go on; a later `run` replaces an earlier one."""
    for name, kind in _LISTS.items():
        getattr(into, name).extend(
            read_list(kind, document.get(name, []), f"{where}: {name}")
        )
    if "run" in document:
        into.run = _read(Run, document["run"], f"{where}: run")


def read_list(kind: type[T], given: Any, where: str) -> list[T]:
    """Return dataclasses of a JSON list."""
    if not isinstance(given, list):
        raise TraceError(f"{where} is {_spell(given)}; want a list")
    return [_read(kind, one, f"{where}[{i}]") for i, one in enumerate(given)]


def _read(kind: type[T], given: Any, where: str) -> T:
    """Return a dataclass of JSON's object; what it does not know is passed over."""
    if not isinstance(given, dict):
        raise TraceError(f"{where} is {_spell(given)}; want an object")
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in given:
            values[field.name] = _value(field, given[field.name], where)
        elif field.default is dataclasses.MISSING:
            raise TraceError(f"{where} has no {field.name!r}")
    return kind(**values)


def _value(field: Any, value: Any, where: str) -> Any:
    match field.type:
        case "int":
            if type(value) is int and -_MOST < value < _MOST:
                return value
            want = "a whole number"
        case "str":
            if isinstance(value, str):
                return value
            want = "a text"
        case _:
            many = list(value) if isinstance(value, list | tuple) else None
            inner = int if "int" in field.type else str
            if many is not None and all(type(v) is inner for v in many):
                return tuple(many)
            want = f"a list of {inner.__name__}"
    raise TraceError(f"{where}: {field.name} is {_spell(value)}; want {want}")


def _spell(value: Any) -> str:
    return repr(value)[:40]
