"""stretto inside SGLang as it is: `SGLANG_PLUGINS=stretto sglang serve ...`.

SGLang asks the entry point "stretto" of its group `sglang.srt.plugins` for hooks, in
every process of its own. Ours is around the function that says which class its
all_reduce by peer memory is: `.sglang.CustomAllReduceV2`, where the group's ranks share
a host and its device is a CUDA GPU. Any other group gets SGLang's own.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

from stretto.errors import MissingExtraError
from stretto.torch.serving.sglang import CustomAllReduceV2

_log = logging.getLogger("stretto.torch")
TARGET = (
    "sglang.srt.distributed.device_communicators.custom_all_reduce"
    ".dispatch_custom_allreduce"
)


def hook() -> None:
    """Ask SGLang's registry to call `choose` around what it calls now."""
    try:
        registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    except ImportError as e:
        raise MissingExtraError(f"SGLang's hooks: {e}; install sglang") from e
    registry.HookRegistry.register(TARGET, choose, registry.HookType.AROUND)


def choose(original: Callable[..., Any], group: Any, device: Any) -> Callable[..., Any]:
    """Return what makes a group's all_reduce (collective)."""
    if getattr(device, "type", "") == "cuda":
        made = CustomAllReduceV2(group, device)
        if not made.disabled:
            _log.info("all_reduce by stretto")
            return lambda group, device: made
    return original(group=group, device=device)  # type: ignore[no-any-return]
