"""What others call by entry points: `import torch`, vLLM and SGLang.

It is no part of the package, so that whatever is missing there, or broken, cannot keep
anybody from importing torch. TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from calling.
An engine has stretto only where it is named: VLLM_PLUGINS or SGLANG_PLUGINS=stretto;
DeepEP's interface by stretto for `import deep_ep` where they name stretto_deep_ep.
"""

from __future__ import annotations

import os

__all__ = ["deep_ep", "register", "sglang_hooks", "vllm_platform"]


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


def vllm_platform() -> str | None:
    """Return the path of our platform for vLLM, or None: nobody asked, or no CUDA."""
    if not _named("VLLM_PLUGINS"):
        return None
    from vllm.platforms import cuda_platform_plugin

    if cuda_platform_plugin() is None:
        import logging

        logging.getLogger("stretto").warning(
            "VLLM_PLUGINS names stretto, whose communicator is for CUDA; vLLM finds no "
            "CUDA device, so it takes its own"
        )
        return None
    return "stretto.torch.serving.vllm_engine.StrettoPlatform"


def sglang_hooks() -> None:
    """Put our all_reduce where SGLang makes its own, if SGLANG_PLUGINS names us."""
    if _named("SGLANG_PLUGINS"):
        from stretto.torch.serving.sglang_engine import hook

        hook()


def deep_ep() -> None:
    """Be `deep_ep` in this process, if VLLM_PLUGINS or SGLANG_PLUGINS says so."""
    if any(
        _named(one, "stretto_deep_ep") for one in ("VLLM_PLUGINS", "SGLANG_PLUGINS")
    ):
        from stretto.experts.deep_ep import install

        install()


def _named(variable: str, name: str = "stretto") -> bool:
    """Return whether a name is asked for: engines call all where nothing is set."""
    return name in [one.strip() for one in os.environ.get(variable, "").split(",")]
