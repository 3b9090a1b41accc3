"""Collective communication for AI: written, proved, tuned and run from Python."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from stretto._version import __version__
from stretto.errors import (
    BoundsError,
    CallError,
    CollectiveMismatch,
    CollectiveTimeout,
    CommunicationError,
    CommunicatorBroken,
    DeviceError,
    LaunchEnvironmentError,
    MissingExtraError,
    ParseError,
    PeerLost,
    PlanError,
    ProgramError,
    PromiseError,
    RankFailed,
    RanksError,
    RendezvousError,
    SharedMemoryError,
    StrettoError,
    TopologyError,
    TraceError,
    UndefinedError,
    UnknownNameError,
    WireError,
)

if TYPE_CHECKING:  # not from facades: mypy takes `lang.algorithm` for the module
    from stretto.calls import Communicator, Work
    from stretto.calls.joining.spawn import connect, spawn
    from stretto.epilogues.bind import epilogue
    from stretto.executors.cuda import include_path
    from stretto.lang.algorithm import algorithm
    from stretto.lang.byhand import kernel
    from stretto.lang.ranks import reduce
    from stretto.plan import Schedule

__all__ = [
    "BoundsError",
    "CallError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "CommunicationError",
    "Communicator",
    "CommunicatorBroken",
    "DeviceError",
    "LaunchEnvironmentError",
    "MissingExtraError",
    "ParseError",
    "PeerLost",
    "PlanError",
    "ProgramError",
    "PromiseError",
    "RankFailed",
    "RanksError",
    "RendezvousError",
    "Schedule",
    "SharedMemoryError",
    "StrettoError",
    "TopologyError",
    "TraceError",
    "UndefinedError",
    "UnknownNameError",
    "WireError",
    "Work",
    "__version__",
    "algorithm",
    "connect",
    "epilogue",
    "include_path",
    "kernel",
    "reduce",
    "spawn",
]

_HOMES = {
    "Communicator": "stretto.calls",
    "Schedule": "stretto.plan",
    "Work": "stretto.calls",
    "algorithm": "stretto.lang",
    "connect": "stretto.calls",
    "epilogue": "stretto.epilogues",
    "include_path": "stretto.executors.cuda",
    "kernel": "stretto.lang",
    "reduce": "stretto.lang",
    "spawn": "stretto.calls",
}
"""What is imported when it is first asked for, so that `import stretto` is quick."""


def __getattr__(name: str) -> Any:
    """Import a public name from its room."""
    if name not in _HOMES:
        is_room = importlib.util.find_spec(f"{__name__}.{name}") is not None
        if is_room or name.startswith("_"):  # Python looks here before it imports
            raise AttributeError(f"module 'stretto' has no attribute {name!r}")
        from stretto.calls.hints import module_hint

        verbs = dir(importlib.import_module("stretto.calls").Communicator)
        raise AttributeError(module_hint(name, __all__, verbs))
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
