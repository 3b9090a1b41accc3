"""What `import torch` calls, by its entry point: the backend "stretto" is then known.

It is no part of the package, so that whatever is missing there, or broken, cannot keep
anybody from importing torch. TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from calling.
"""

from __future__ import annotations

import os

__all__ = ["register"]


def register() -> None:
    """Register the backend, or log why it cannot be; raise nothing."""
    if os.environ.get("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "0") not in ("", "0"):
        return  # torch would not look it up
    try:
        import torch.distributed

        if torch.distributed.is_available():
            import stretto.torch  # noqa: F401
    except Exception as e:
        import logging

        logging.getLogger("stretto").warning(
            'the backend "stretto" of torch.distributed is not to be had: %s: %s; '
            "install stretto again, or uninstall it",
            *(type(e).__name__, e),
        )
