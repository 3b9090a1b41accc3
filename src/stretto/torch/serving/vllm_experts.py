"""The `all2all_manager` that vLLM wants where experts are on several ranks: its own.

By default every rank gets all tokens (all_gather), and sums go back (reduce_scatter):
vLLM's manager calls `all_gatherv` and `reduce_scatterv` of its groups, whose
communicators are ours. Its "deepep_high_throughput" and "deepep_low_latency" call
`deep_ep`, which `stretto.experts.deep_ep` may be.
"""

from __future__ import annotations

import importlib
from typing import Any

from stretto.errors import CallError, MissingExtraError

__all__ = ["manager_for"]

_MANAGERS = {
    "naive": "AgRsAll2AllManager",
    "allgather_reducescatter": "AgRsAll2AllManager",
    "deepep_high_throughput": "DeepEPHTAll2AllManager",
    "deepep_low_latency": "DeepEPLLAll2AllManager",
}
_WHERE = "distributed.device_communicators.all2all"


def _of_vllm(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"vllm.{module}"), name)
    except (ImportError, AttributeError) as e:
        raise MissingExtraError(f"vLLM's {name}: {e}; install vllm") from e


def manager_for(cpu_group: Any) -> Any:
    """Return a manager as vLLM's configuration asks for."""
    config = _of_vllm("config", "get_current_vllm_config_or_none")()
    backend = "naive" if config is None else config.parallel_config.all2all_backend
    if backend not in _MANAGERS:
        raise CallError(f"all2all_backend={backend!r}; want one of {[*_MANAGERS]}")
    return _of_vllm(_WHERE, _MANAGERS[backend])(cpu_group)
