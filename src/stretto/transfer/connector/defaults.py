"""What vLLM's `KVConnectorBase_V1` asks of every connector, where ours need no more.

Names and meanings are vLLM's; both halves have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.errors import CallError

__all__ = ["Defaults"]


class Defaults:
    """See the module."""

    prefer_cross_layer_blocks = False
    """A plan puts all layers in one pass, however they lie."""
    supports_eagle_prefix_cache_hashing = False
    use_eagle_prefix_cache_hashing = False

    def set_eagle_prefix_cache_hashing(self, enabled: bool) -> None:
        """Note the engine's choice; pages are named by number here, not by hash."""
        self.use_eagle_prefix_cache_hashing = enabled

    def set_host_xfer_buffer_ops(self, copy_operation: Any) -> None:
        """Take no help: memory of GPUs is staged by the engine itself."""

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Take no notice: leases say which blocks rest."""

    def on_new_request(self, request: Any) -> None:
        """Do nothing before there are blocks."""

    def get_kv_connector_kv_cache_events(self) -> None:
        """Return nothing: pages are not published."""

    def get_finished_count(self) -> None:
        """Return nothing: every worker counts."""

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, Any]) -> None:
        """Do nothing: engines find each other by what requests say."""

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: Mapping[tuple[int, int], Any]
    ) -> None:
        """Do nothing: layers of other stages are layouts like others."""

    def reset_cache(self) -> None:
        """Do nothing: what is kept is kept for one request."""

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> None:
        """Require none."""

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: Mapping[str, Any]) -> bool:
        """Return whether layers are waited for, or saved, one by one."""
        return bool(extra_config.get("by_layer", True))

    @classmethod
    def build_kv_connector_stats(
        cls, data: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Return figures as they came over."""
        return None if data is None else dict(data)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any,
        per_engine_labelvalues: Any,
    ) -> None:  # fmt: skip
        """Export nothing: `get_kv_connector_stats` has the figures."""


def layer_number(name: str) -> int:
    """Return the layer of a name such as 'model.layers.7.self_attn.attn'."""
    numbers = [int(word) for word in name.split(".") if word.isdigit()]
    if len(numbers) != 1:
        raise CallError(f"layer {name!r}; want a name with one number in it")
    return numbers[0]
