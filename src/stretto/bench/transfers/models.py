"""KV caches of models that people serve: what a request's tokens take."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.errors import UnknownNameError
from stretto.transfer import Layout, kv_layout

__all__ = ["MODELS", "Model", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a model's cache depends on."""

    layers: int
    heads: int
    dim: int
    layout: str = "vllm/flash"

    def cache(
        self, blocks: int, block: int, *, layers: int = 0, tp: tuple[int, int] = (0, 1),
        layout: str = "",
    ) -> Layout:  # fmt: skip
        """Return a rank's cache; of so many layers only, where that is said."""
        named = layout or self.layout
        heads = {} if named.endswith("mla") else {"heads": self.heads, "tp": tp}
        return kv_layout(
            named, layers=layers or self.layers, blocks=blocks, block=block,
            dim=self.dim, **heads,  # type: ignore[arg-type]
        )  # fmt: skip


MODELS = {
    "llama-3.1-8b": Model(layers=32, heads=8, dim=128),
    "llama-3.1-70b": Model(layers=80, heads=8, dim=128),
    "qwen3-8b": Model(layers=36, heads=8, dim=128),
    "qwen3-235b": Model(layers=94, heads=4, dim=128),
    "gpt-oss-20b": Model(layers=24, heads=8, dim=64),
    "gpt-oss-120b": Model(layers=36, heads=8, dim=64),
    "deepseek-r1": Model(layers=61, heads=1, dim=576, layout="vllm/mla"),
}
"""By name: as their configurations say."""


def model(name: str) -> Model:
    """Return a model by its name."""
    if name not in MODELS:
        raise UnknownNameError.among("model", name, MODELS)
    return MODELS[name]
