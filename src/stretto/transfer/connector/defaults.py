"""What vLLM's `KVConnectorBase_V1` asks of every connector, where ours need no more.

Names and meanings are vLLM's; both halves have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.errors import CallError
from stretto.transfer.connector.stats import Metrics, Stats


class Defaults:
    """See the module."""

    supports_divergent_local_hybrid_hits = False
    """State of recurrent layers is not moved."""

    @property
    def requires_kv_delivery(self) -> bool:
        """Return whether somebody waits for what is computed here."""
        return False

    def get_mem_pool_context(self) -> None:
        """Want no memory of a special kind."""

    def set_host_xfer_buffer_ops(self, copy_operation: Any) -> None:
        """Take no help: memory of GPUs is staged by the engine itself."""

    def restore_kv_caches(self) -> None:
        """Do nothing: caches are registered anew after a sleep."""

    def finish_forward(self) -> None:
        """Do nothing: what is read by others rests under a lease."""

    def reset_capture_state(self) -> None:
        """Do nothing: captures change nothing here."""

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Take no notice: leases say which blocks rest."""

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Take no notice: leases say which blocks rest."""

    def on_new_request(self, request: Any) -> None:
        """Do nothing before there are blocks."""

    def get_external_cache_hit_sources(
        self, request: Any, num_external_tokens: int
    ) -> dict[Any, int]:
        """Return where tokens came from: vLLM's own names are its class's."""
        return {"p2p": num_external_tokens} if num_external_tokens else {}

    def register_finished_partial_tail(
        self, request: Any, block_ids: Sequence[Sequence[int]],
        partial_tail_offloads: Sequence[tuple[int, int, int]],
    ) -> bool:  # fmt: skip
        """Take no part of a block beside those that rest whole."""
        return False

    def has_pending_block_frees(self) -> bool:
        """Return whether blocks are about to be free: no step may wait for that."""
        return False

    def get_kv_connector_kv_cache_events(self) -> None:
        """Return nothing: pages are not published."""

    def get_finished_count(self) -> None:
        """Return nothing: every worker counts."""

    def get_handshake_metadata(self) -> Any:
        """Return nothing: a worker has some."""

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, Any]) -> None:
        """Do nothing: a scheduler needs it."""

    def reset_cache(self) -> bool:
        """Return that nothing is kept beyond a request."""
        return True

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """Return whether caches may move meanwhile: peers would not know."""
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> None:
        """Require none."""

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: Mapping[str, Any]) -> bool:
        """Return whether layers are waited for, or saved, one by one."""
        return bool(extra_config.get("by_layer", False))

    @classmethod
    def build_kv_connector_stats(
        cls, data: Mapping[str, Any] | None = None
    ) -> Stats | None:
        """Return figures as they came over."""
        return Stats(data)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Mapping[Any, Any],
        labelnames: Sequence[str],
        per_engine_labelvalues: Mapping[int, Sequence[object]],
    ) -> Metrics:  # fmt: skip
        """Return what hands figures to Prometheus."""
        return Metrics(metric_types, labelnames, per_engine_labelvalues)


def layer_number(name: str) -> int:
    """Return the layer of a name such as 'model.layers.7.self_attn.attn'."""
    numbers = [int(word) for word in name.split(".") if word.isdigit()]
    if len(numbers) != 1:
        raise CallError(f"layer {name!r}; want a name with one number in it")
    return numbers[0]
