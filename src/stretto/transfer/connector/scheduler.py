"""The scheduler's side: which tokens need not be computed, and which blocks rest.

Names and meanings are those of vLLM's `KVConnectorBase_V1`. A request is anything with
`request_id`, `num_tokens` and `kv_transfer_params`. What is done for it, these say:
`do_remote_decode` keeps its blocks until they were fetched, `do_remote_prefill` fetches
them. What `request_finished` returns for the first is what the second needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.errors import CallError
from stretto.transfer.connector.defaults import Defaults
from stretto.transfer.connector.fetching import Fetching
from stretto.transfer.connector.groups import CacheGroup
from stretto.transfer.connector.keeping import Keeping, ended_well
from stretto.transfer.connector.pushing import Pushing
from stretto.transfer.connector.stats import Stats
from stretto.transfer.connector.steps import (
    EnginePlace,
    Step,
    Told,
    block_ids_of,
    params_of,
)


class Scheduler(Defaults):
    """Decides; moves nothing."""

    def __init__(
        self, engines: Sequence[EnginePlace | Mapping[str, str] | str] = (), *,
        block: int = 16, groups: Sequence[CacheGroup] = (), role: str = "both",
        keep_s: float = 30.0, by_layer: bool = False, model: str = "", name: str = "",
    ) -> None:  # fmt: skip
        """`engines` are this instance's workers, by name or HOST:PORT.

        They may also come by `set_xfer_handshake_metadata`. `role` is "prefill",
        "decode" or "both"; blocks are kept so long, and longer while decode says that
        it waits. With `by_layer` a step computes with what it loads, layer by layer;
        else requests wait for it. Of `model` and `groups` both sides have the same.
        """
        if role not in ("prefill", "decode", "both"):
            raise CallError(f"role={role!r}; want 'prefill', 'decode' or 'both'")
        if not keep_s > 0:
            raise CallError(f"keep_s={keep_s}; want seconds, more than 0")
        self._places = tuple(EnginePlace.of(one) for one in engines)
        self._groups = tuple(groups) or (CacheGroup(block=block),)
        self._role, self._by_layer, self._name = role, by_layer, name
        self._model = model
        self._keeping = Keeping(keep_s)
        self._fetching = Fetching(self._groups, model, keep_s / 6)
        self._pushing = Pushing()

    @property
    def requires_kv_delivery(self) -> bool:
        """Return whether somebody waits for what is computed here."""
        return self._role != "decode"

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, Any]) -> None:
        """Note where workers are found, by rank: requests carry it to decode."""
        self._places = tuple(
            EnginePlace.of(metadata[rank]) for rank in sorted(metadata)
        )

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: Mapping[tuple[int, int], Any]
    ) -> None:
        """Note the same, by stage and rank."""
        self.set_xfer_handshake_metadata(metadata)  # type: ignore[arg-type]

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """Return the groups that a load fills: all."""
        return tuple(range(len(self._groups)))

    # A request, in the order of its calls.

    def on_new_request(self, request: Any) -> None:
        """Say, from now on, that its blocks are wanted."""
        self._fetching.come(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Return how many tokens come from elsewhere, and whether it waits for them."""
        leave = int(self._by_layer)  # a step that loads computes at least one
        more = self._fetching.match(request, num_computed_tokens, leave=leave)
        return more, more > 0 and not self._by_layer

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None:
        """Note the blocks into which a request's tokens shall come, or from which."""
        params = params_of(request)
        if "push_to" in params:
            self._pushing.allocated(request, blocks)
        elif params.get("do_remote_decode"):
            self._keeping.open(request.request_id)
        self._fetching.allocated(
            request, blocks, num_external_tokens, waits=self._by_layer
        )

    def build_connector_meta(self, scheduler_output: Any = None) -> Step:
        """Return what the workers do in this step, once."""
        self._keeping.expire()
        mine = self._places[0].name if self._places else ""
        return Step(
            saves=self._pushing.take(scheduler_output), speaker=mine,
            **self._keeping.take(), **self._fetching.take(),
        )  # fmt: skip

    def update_connector_output(self, connector_output: Any) -> None:
        """Forget requests that were fetched, here or there."""
        self._keeping.sent(getattr(connector_output, "finished_sending", None) or ())
        for name in getattr(connector_output, "finished_recving", None) or ():
            self._fetching.end(name)
        told = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(told, Told):
            self._keeping.wanted(told.wanted)
            for name in told.loaded:
                self._fetching.loaded(name, max(1, len(self._places)))

    def request_finished(
        self, request: Any, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return whether blocks must rest until decode has them, and how it finds them.

        The parameters are JSON.
        """
        return self.request_finished_all_groups(request, block_ids_of(block_ids))

    def request_finished_all_groups(
        self, request: Any, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return the same of blocks by group."""
        name = request.request_id
        self._pushing.forget(name)
        self._fetching.finished(request)
        token = b""
        if ended_well(request) and any(block_ids) and self._places:
            token = self._keeping.keep(name)
        if not token:
            self._keeping.close(name)
            return False, None
        where, _, port = self._places[0].address.rpartition(":")
        # The last token was sampled, not computed: there is nothing of it.
        computed = getattr(request, "num_computed_tokens", None)
        tokens = int(request.num_tokens if computed is None else computed)
        return True, {
            "do_remote_prefill": True, "do_remote_decode": False,
            "remote_engine_id": self._name or str(self._places[0]),
            "remote_request_id": name, "remote_host": where or None,
            "remote_port": int(port) if port else None, "tp_size": len(self._places),
            "remote_block_ids": [list(some) for some in block_ids_of(block_ids)],
            "remote_num_tokens": tokens,
            "engines": [_written(place) for place in self._places],
            "token": token.hex(), "model": self._model,
            "block_sizes": [group.block for group in self._groups],
        }  # fmt: skip

    def preempt(self, request: str) -> None:
        """Have workers take back what was begun for a request."""
        self._pushing.forget(request)
        self._fetching.drop(request)

    def has_pending_push_work(self) -> bool:
        """Return whether workers have to be told of something."""
        return self._keeping.has_news or self._fetching.has_news

    def take_events(self) -> Sequence[Any]:
        """Return nothing: caches here have no events."""
        return ()

    def get_kv_connector_stats(self) -> Stats | None:
        """Return nothing: workers count."""
        return None

    def shutdown(self) -> None:
        """End nothing: there is nothing under way here."""


def _written(place: EnginePlace) -> dict[str, str]:
    return {"name": place.name, "address": place.address, "host": place.host}
