"""What a scheduler tells its workers for one step, and what they tell it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.transfer.connector.groups import Pages

DONE, HERE = b"kv done ", b"kv here "
"""How notifications begin: of a token, that all was fetched; that somebody will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlace:
    """Where a worker is found: by its name on its host, by its address from others."""

    name: str = ""
    address: str = ""
    host: str = ""

    @classmethod
    def of(cls, given: EnginePlace | Mapping[str, str] | str) -> EnginePlace:
        """Return one from what was sent, or from a bare name or HOST:PORT."""
        if isinstance(given, EnginePlace):
            return given
        if isinstance(given, str):
            return cls(address=given) if ":" in given else cls(name=given)
        return cls(**{k: str(given[k]) for k in ("name", "address", "host")})

    def __str__(self) -> str:
        """Return what people call it."""
        return self.address or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A request whose keys and values lie at other engines."""

    request: str
    engines: tuple[EnginePlace, ...]
    """Those that hold them: one for each rank that made them."""
    token: bytes
    """That of the lease under which all of them keep it."""
    groups: tuple[Pages, ...]
    waits: bool = False
    """Whether this step computes with them, layer by layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A request whose keys and values go to an engine, layer by layer."""

    request: str
    engine: str
    remote_blocks: tuple[int, ...]
    local_blocks: tuple[int, ...]
    tokens: int
    lease: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Tokens whose requests wait, or are done with, and at whose engines."""

    engines: tuple[EnginePlace, ...]
    tokens: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a serving engine: vLLM calls it the connector's metadata."""

    loads: tuple[Load, ...] = ()
    saves: tuple[Save, ...] = ()
    opened: Mapping[str, bytes] = field(default_factory=dict)
    """Requests that others will fetch, and the token of the lease of each."""
    closed: tuple[str, ...] = ()
    """Those that nobody will fetch: no parameters were given out."""
    late: tuple[str, ...] = ()
    """Those that nobody fetched in time: their leases end, and then they are named."""
    dropped: tuple[str, ...] = ()
    """Requests whose loads are taken back."""
    done: tuple[Heartbeat, ...] = ()
    """What others need not keep any more."""
    waiting: tuple[Heartbeat, ...] = ()
    """What others have to keep a while longer."""
    speaker: str = ""
    """The engine that tells them so; "" is any."""

    def __bool__(self) -> bool:
        """Return whether there is anything to do."""
        return any(getattr(self, n) for n in self.__slots__ if n != "speaker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What workers tell the scheduler."""

    wanted: frozenset[str] = frozenset()
    """Requests that others still want."""
    loaded: tuple[str, ...] = ()
    """Requests that a step computed with; once for each worker."""

    def aggregate(self, other: Told) -> Told:
        """Return what both tell."""
        return Told(
            wanted=self.wanted | other.wanted, loaded=self.loaded + other.loaded
        )


@dataclass(slots=True, kw_only=True)
class StepResults:
    """What has ended since it was asked last."""

    finished_sending: set[str]
    finished_recving: set[str]
    failed_recving: set[str]


def saved_tag(request: str) -> bytes:
    """Return the notification that a request's blocks were put."""
    return b"kv put " + hashlib.blake2b(request.encode(), digest_size=16).digest()


def params_of(given: Any) -> Mapping[str, Any]:
    """Return a request's `kv_transfer_params`, whatever a request is."""
    found = getattr(given, "kv_transfer_params", None)
    return found or {}


def block_ids_of(given: Any) -> tuple[tuple[int, ...], ...]:
    """Return block numbers by group: of a list, of lists, or of a manager's blocks."""
    ask = getattr(given, "get_block_ids", None)
    some = (given if ask is None else ask()) or ()
    if not any(isinstance(one, Iterable) for one in some):
        some = (some,)
    return tuple(tuple(int(block) for block in one) for one in some)
