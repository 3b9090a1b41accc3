"""DeepEP's interface, with stretto behind it, for who asks for it by name.

In: calls as programs make them of the package `deep_ep` (its `Buffer`, both modes).
Out: what those calls return. Never: a name taken without `install()`.

`install()` lets `import deep_ep` find this module, in this process and before anybody
imported another one of that name. Signatures are recorded, with the commits that they
were read from (tests/pure/torch_ops/signatures.json); so are sequences of calls
(tests/host/experts/callers.py).
"""

from __future__ import annotations

import sys

from stretto.errors import CallError
from stretto.experts.deep_ep import utils
from stretto.experts.deep_ep.buffer import Buffer, Handle
from stretto.experts.deep_ep.utils import Config, EventHandle, EventOverlap, topk_idx_t

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "Handle", "install",
           "topk_idx_t"]  # fmt: skip


def install(name: str = "deep_ep") -> None:
    """Let `import deep_ep` mean this module; refuse where it means another already."""
    mine = sys.modules[__name__]
    found = sys.modules.get(name)
    if found not in (None, mine):
        raise CallError(
            f"install: {name!r} is {getattr(found, '__file__', found)!r} already; want "
            "stretto.experts.deep_ep.install() before anything imports it"
        )
    sys.modules[name] = mine
    sys.modules[f"{name}.utils"] = utils
