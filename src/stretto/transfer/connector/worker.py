"""A worker's side: it registers its cache once, and moves blocks of it each step.

Names and meanings are those of vLLM's `KVConnectorBase_V1`. What could not be loaded
is computed again by who reads `get_block_ids_with_load_errors` or, where a model has
several groups of blocks, `failed_recving`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stretto.errors import CallError, StrettoError
from stretto.fabric.patience import check_deadline
from stretto.fabric.process import host_id
from stretto.transfer.connector.defaults import Defaults, layer_number
from stretto.transfer.connector.groups import CacheGroup, region_name
from stretto.transfer.connector.lending import Lending
from stretto.transfer.connector.loading import Loading
from stretto.transfer.connector.places import Peers
from stretto.transfer.connector.stats import Stats
from stretto.transfer.connector.steps import (
    DONE,
    HERE,
    EnginePlace,
    Heartbeat,
    Save,
    Step,
    StepResults,
    Told,
    saved_tag,
)
from stretto.transfer.engine.engine import Engine
from stretto.transfer.engine.peer import Peer
from stretto.transfer.layouts import Layout
from stretto.transfer.regions.region import Region
from stretto.transfer.ways.transfer import Transfer

_NOWHERE = ("0.0.0.0", "::", "[::]", "")


class Worker(Defaults):
    """Moves blocks between this worker's cache and others'."""

    def __init__(
        self, engine: Engine, *, layout: Layout | str | None = None,
        groups: Sequence[CacheGroup] = (), deadline_s: float = 30.0,
        advertise: str = "",
    ) -> None:  # fmt: skip
        """`layout` is the cache's, or `groups` have theirs.

        `advertise` is the HOST:PORT that others are told, where the engine listens on
        all addresses.
        """
        check_deadline(deadline_s, "a connector")
        self.engine, self._deadline_s = engine, deadline_s
        self._groups = tuple(groups) or (CacheGroup(block=1, layout=layout),)
        self._advertise = advertise
        self._layers: dict[str, tuple[int, int]] = {}
        """By name, a layer's group and its number there."""
        self._regions: list[Region] = []
        self._step, self._is_bound = Step(), False
        self._peers = Peers(engine)
        self._stats = Stats()
        self._lending = Lending(engine, self._stats)
        self._loading: dict[str, Loading] = {}
        self._saving: list[tuple[Save, Transfer]] = []
        self._unsaved: set[str] = set()
        """Requests of this step that could not be put."""
        self._failed: set[int] = set()
        self._loaded: list[str] = []
        """Requests that steps computed with, of which the scheduler has to hear."""

    # Once.

    def register_kv_caches(
        self, kv_caches: Mapping[str, Any], layout: Layout | str | None = None
    ) -> Region:
        """Share a cache: a tensor a layer, in the layers' order; or one for all.

        A layout with `L` before the bar is of tensors; K and V apart are listed too.
        """
        for number, group in enumerate(self._groups):
            names = group.layers or tuple(kv_caches)
            lacking = [name for name in names if name not in kv_caches]
            if lacking:
                raise CallError(f"no cache of {', '.join(lacking)}, of group {number}")
            some = {name: kv_caches[name] for name in names}
            self._share(number, some, layout or group.layout)
        return self._regions[0]

    def _share(
        self, number: int, caches: Mapping[str, Any], given: Layout | str | None
    ) -> None:
        tensors: list[Any] = []
        for one in caches.values():
            tensors += list(one) if isinstance(one, (list, tuple)) else [one]
        made = _layout(given)
        if made.parts and [a.name for a in made.parts] == ["KV", "L"]:
            tensors = tensors[::2] + tensors[1::2]
        start = made.axis("L").start if "L" in made.names else 0
        self._layers |= {name: (number, start + n) for n, name in enumerate(caches)}
        whole = tensors if made.parts else tensors[0]
        self._regions.append(self.engine.share(whole, region_name(number), made))

    def register_cross_layers_kv_cache(
        self, kv_cache: Any, attn_backend: Any = None
    ) -> Region:
        """Share one tensor of all layers; they are found by the numbers in names."""
        made = _layout(self._groups[0].layout)
        self._regions = [self.engine.share(kv_cache, region_name(0), made)]
        return self._regions[0]

    def unregister_kv_caches(self) -> None:
        """Take the memory back: peers are told, and load it no more."""
        regions, self._regions = self._regions, []
        for region in regions:
            self.engine.unshare(region, self._deadline_s)

    def get_handshake_metadata(self) -> Any:
        """Return where others find this worker: by name on its host, else by address.

        CallError: it listens where nobody else can come to.
        """
        address = self._advertise or self.engine.address
        if address and address.rpartition(":")[0] in _NOWHERE:
            raise CallError(
                f"engine {self.engine.name!r} listens at {address}, which no other "
                "host can reach; pass advertise='HOST:PORT', or listen at HOST:PORT"
            )
        return EnginePlace(name=self.engine.name, address=address, host=host_id())

    # Each step.

    def handle_preemptions(self, kv_connector_metadata: Step) -> None:
        """Take back loads of requests whose blocks are given away; nothing comes late.

        They are named by `get_finished` none the less.
        """
        self._drop(kv_connector_metadata.dropped)

    def _drop(self, requests: Iterable[str]) -> None:
        for request in requests:
            loading = self._loading.get(request)
            if loading is not None:
                loading.drop()

    def bind_connector_metadata(self, connector_metadata: Step) -> None:
        """Take what the scheduler says of this step."""
        step = self._step = connector_metadata
        self._is_bound = True
        self._lending.close(step.closed)
        self._lending.open(step.opened)
        self._lending.expire(step.late)
        if step.speaker in ("", self.engine.name):
            self._tell(DONE, step.done)
            self._tell(HERE, step.waiting)

    def has_connector_metadata(self) -> bool:
        """Return whether a step is under way."""
        return self._is_bound

    def clear_connector_metadata(self) -> None:
        """Forget it."""
        self._step, self._is_bound = Step(), False

    def start_load_kv(self, forward_context: Any = None, **how: Any) -> None:
        """Begin to fetch what this step's requests need; this waits for nobody."""
        if self._step.loads:
            self._mine()
        for load in self._step.loads:
            made = Loading(load, self._regions, self._peers, self._deadline_s)
            self._loading[load.request] = made
        for loading in self._loading.values():
            loading.advance()
        self._drop(self._step.dropped)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Return when a layer of what this step computes with is here, or has failed.

        Requests that wait for all of theirs are waited for by nobody.
        """
        group, layer = self._layer(layer_name)
        for loading in self._loading.values():
            if loading.load.waits:
                loading.wait_for(group, layer)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any = None, attn_metadata: Any = None,
        **how: Any,
    ) -> None:  # fmt: skip
        """Send a layer of this step's requests, while the next one is computed.

        On a GPU, after what its stream was given; `stream=` names another.
        """
        _, layer = self._layer(layer_name)
        for save in self._step.saves:
            if save.request in self._unsaved:
                continue
            try:
                self._saving.append((save, self._put(save, layer, how)))
            except StrettoError:
                self._unsaved.add(save.request)

    def _put(self, save: Save, layer: int, how: Mapping[str, Any]) -> Transfer:
        target = self._to(save).region(region_name(0)).wait(self._deadline_s)
        source = self._mine()[0][list(save.local_blocks)].first(save.tokens)
        made: Transfer = target[list(save.remote_blocks)].layer(layer).put(
            source.layer(layer), deadline=self._deadline_s, lease=save.lease,
            **({"stream": how["stream"]} if "stream" in how else {}),
        )  # fmt: skip
        return made

    def _to(self, save: Save) -> Peer:
        return self._peers.reach(EnginePlace.of(save.engine)).wait(self._deadline_s)

    def wait_for_save(self) -> None:
        """Return when all layers of this step are where they belong; tell who waits.

        Who did not get all of a request hears nothing of it, and computes it.
        """
        saving, self._saving = self._saving, []
        nbytes = dict.fromkeys((save.request for save in self._step.saves), 0)
        seconds = dict.fromkeys(nbytes, 0.0)
        for save, transfer in saving:
            try:
                stats = transfer.wait(self._deadline_s)
            except StrettoError:
                self._unsaved.add(save.request)
            else:
                nbytes[save.request] += stats.nbytes
                seconds[save.request] += stats.seconds
        unsaved, self._unsaved = self._unsaved, set()
        for save in self._step.saves:
            if save.request in unsaved:
                self._stats.count("failed")
                continue
            self._stats.moved("save", nbytes[save.request], seconds[save.request])
            self._peers.tell(EnginePlace.of(save.engine), [saved_tag(save.request)])

    def get_transfer_results(self, finished_req_ids: Iterable[str] = ()) -> StepResults:
        """Return what has ended since: fetched from here, come here, and not come.

        Of those fetched from here are named which `finished_req_ids` has named before.
        """
        sent = self._lending.finished(finished_req_ids)
        received, failed = set(), set()
        for request, loading in list(self._loading.items()):
            if not loading.advance():
                continue
            del self._loading[request]
            if loading.load.waits:
                self._loaded.append(request)
            else:
                received.add(request)
            if loading.is_dropped:
                continue
            if not loading.failed:
                self._stats.moved("load", loading.nbytes, loading.seconds)
                continue
            self._stats.count("failed")
            if len(self._groups) > 1:  # numbers of blocks are those of a group
                failed.add(request)
            else:
                self._failed |= loading.lost
        return StepResults(
            finished_sending=sent, finished_recving=received, failed_recving=failed
        )

    def get_finished(
        self, finished_req_ids: Iterable[str] = ()
    ) -> tuple[set[str], set[str]]:
        """Return requests that were fetched from here, and those that have come."""
        found = self.get_transfer_results(finished_req_ids)
        return found.finished_sending, found.finished_recving

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return blocks of ours that hold nothing to rely on; each is told once."""
        failed, self._failed = self._failed, set()
        return failed

    def get_kv_connector_stats(self) -> Stats | None:
        """Return what was moved since it was last asked; None: nothing."""
        if self._stats.is_empty():
            return None
        made, self._stats = self._stats, Stats()
        self._lending.stats = self._stats
        return made

    def build_connector_worker_meta(self) -> Told | None:
        """Return which requests others still want, and which need others no more."""
        wanted, loaded = self._lending.wanted(), tuple(self._loaded)
        self._loaded.clear()
        return Told(wanted=wanted, loaded=loaded) if wanted or loaded else None

    def shutdown(self) -> None:
        """End the engine."""
        self.engine.close()

    def saved(self, request: str, writers: int = 1) -> Any:
        """Return what waits for a request that others put here."""
        return self.engine.notified(saved_tag(request), writers)

    # Inside.

    def _mine(self) -> list[Region]:
        if not self._regions:
            raise CallError("no cache is registered: call register_kv_caches")
        return self._regions

    def _layer(self, name: str) -> tuple[int, int]:
        if not self._layers and self._regions:
            return 0, layer_number(name)
        if name not in self._layers:
            raise CallError(f"no layer {name!r}; registered: {', '.join(self._layers)}")
        return self._layers[name]

    def _tell(self, what: bytes, beats: Iterable[Heartbeat]) -> None:
        """Tell those that keep blocks of tokens, when they are reached."""
        for beat in beats:
            tags = [what + token for token in beat.tokens]
            for place in beat.engines:
                self._peers.tell(place, tags)


def _layout(given: Layout | str | None) -> Layout:
    if given is None:
        raise CallError("no layout: pass Worker(engine, layout=...), or here")
    return Layout(given) if isinstance(given, str) else given
