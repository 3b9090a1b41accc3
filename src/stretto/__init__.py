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
    MembershipError,
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
    from stretto.compiler.plan import Schedule
    from stretto.elastic.batch import elastic_batch
    from stretto.executors.cuda import include_path
    from stretto.program.epilogues.bind import epilogue
    from stretto.program.lang.algorithm import algorithm
    from stretto.program.lang.byhand import kernel
    from stretto.program.lang.ranks import reduce
    from stretto.runtime.calls import Communicator, Elastic, Work
    from stretto.runtime.calls.joining.spawn import connect, spawn

__all__ = [
    "BoundsError",
    "CallError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "CommunicationError",
    "Communicator",
    "CommunicatorBroken",
    "DeviceError",
    "Elastic",
    "LaunchEnvironmentError",
    "MembershipError",
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
    "elastic_batch",
    "epilogue",
    "include_path",
    "kernel",
    "reduce",
    "spawn",
]

_HOMES = {
    "Communicator": "stretto.runtime.calls",
    "Elastic": "stretto.runtime.calls",
    "Schedule": "stretto.compiler.plan",
    "Work": "stretto.runtime.calls",
    "algorithm": "stretto.program.lang",
    "connect": "stretto.runtime.calls",
    "elastic_batch": "stretto.elastic",
    "epilogue": "stretto.program.epilogues",
    "include_path": "stretto.executors.cuda",
    "kernel": "stretto.program.lang",
    "reduce": "stretto.program.lang",
    "spawn": "stretto.runtime.calls",
}
"""What is imported when it is first asked for, so that `import stretto` is quick."""


def __getattr__(name: str) -> Any:
    """Import a public name from its room."""
    if name not in _HOMES:
        is_room = importlib.util.find_spec(f"{__name__}.{name}") is not None
        if is_room or name.startswith("_"):  # Python looks here before it imports
            raise AttributeError(f"module 'stretto' has no attribute {name!r}")
        from stretto.runtime.calls.hints import module_hint

        verbs = dir(importlib.import_module("stretto.runtime.calls").Communicator)
        raise AttributeError(module_hint(name, __all__, verbs))
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
