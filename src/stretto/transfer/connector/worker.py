"""A worker's side: it registers its cache once, and moves blocks of it each step.

Names and meanings are those of vLLM's `KVConnectorBase_V1`. Errors are by block: what
could not be loaded is computed again by who reads `get_block_ids_with_load_errors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stretto.errors import CallError, StrettoError
from stretto.meeting.limits import check_deadline
from stretto.transfer.connector.defaults import Defaults, layer_number
from stretto.transfer.connector.steps import Load, Save, Step, Told, done_tag
from stretto.transfer.engine.engine import Engine
from stretto.transfer.engine.leases import Lease
from stretto.transfer.layouts import Layout
from stretto.transfer.memory.region import Region
from stretto.transfer.plans import deal
from stretto.transfer.ways.transfer import Transfer

__all__ = ["Worker"]

_KV = "kv"
_AT_ONCE, _FEW = 32, 8
"""Leases that the scheduler is told of at once, and when it is told again."""


class Worker(Defaults):
    """Moves blocks between this worker's cache and others'."""

    def __init__(
        self, engine: Engine, *, layout: Layout | str | None = None,
        deadline_s: float = 30.0, readers: int = 1,
    ) -> None:  # fmt: skip
        """`layout` is the cache's; `readers` ranks fetch a request's blocks."""
        check_deadline(deadline_s, "a connector")
        self.engine, self._deadline_s = engine, deadline_s
        self._layout, self._readers = layout, readers
        self._spare: dict[bytes, Lease] = {}
        """Leases that the scheduler was told of, and has not handed out."""
        self._told: set[str] = set()
        self._by_scheduler: set[str] = set()
        """Requests that `get_finished` may name when it was told of them."""
        self._layers: dict[str, int] = {}
        self._region: Region | None = None
        self._step = Step()
        self._loading: dict[str, tuple[Load, list[tuple[int, Transfer]]]] = {}
        self._saving: list[tuple[Save, Transfer]] = []
        self._leases: dict[str, tuple[Lease, Any]] = {}
        self._failed: set[int] = set()
        self._given_up: set[str] = set()
        self._settled: set[int] = set()
        """Transfers of requests under way that have been counted."""
        self._received: set[str] = set()
        self._stats = {"loads": 0, "saves": 0, "bytes": 0, "seconds": 0.0, "errors": 0}

    # Once.

    def register_kv_caches(
        self, kv_caches: Mapping[str, Any], layout: Layout | str | None = None
    ) -> Region:
        """Share a cache: a tensor a layer, in the layers' order; or one for all.

        A layout with `L` before the bar is of tensors; K and V apart are listed too.
        """
        tensors: list[Any] = []
        for one in kv_caches.values():
            tensors += list(one) if isinstance(one, (list, tuple)) else [one]
        made = self._of(layout)
        if made.parts and [a.name for a in made.parts] == ["KV", "L"]:
            tensors = tensors[::2] + tensors[1::2]
        start = made.axis("L").start if "L" in made.names else 0
        self._layers = {name: start + nth for nth, name in enumerate(kv_caches)}
        given = tensors if made.parts else tensors[0]
        self._region = self.engine.share(given, _KV, made)
        return self._region

    def register_cross_layers_kv_cache(
        self, kv_cache: Any, attn_backend: Any = None
    ) -> Region:
        """Share one tensor of all layers; they are found by the numbers in names."""
        self._region = self.engine.share(kv_cache, _KV, self._of(None))
        return self._region

    def _of(self, layout: Layout | str | None) -> Layout:
        given = self._layout if layout is None else layout
        if given is None:
            raise CallError("no layout: pass Worker(engine, layout=...), or here")
        return Layout(given) if isinstance(given, str) else given

    def get_handshake_metadata(self) -> dict[str, str]:
        """Return where others find this worker: JSON can write it."""
        return {"engine": self.engine.name, "address": self.engine.address}

    # Each step.

    def bind_connector_metadata(self, connector_metadata: Step) -> None:
        """Take what the scheduler says of this step."""
        self._step, self._is_bound = connector_metadata, True
        for request, leases in connector_metadata.kept.items():
            made = self._spare.pop(leases.get(self.engine.name, b""), None)
            if made is not None:
                seen = self.engine.notified(done_tag(request), self._readers)
                self._leases[request] = made, seen
                self._by_scheduler.add(request)
        for request in connector_metadata.late:
            self._late(request)

    def _late(self, request: str) -> None:
        found = self._leases.pop(request, None)
        if found is not None:
            found[0].end(self._deadline_s)
            self._given_up.add(request)

    def has_connector_metadata(self) -> bool:
        """Return whether a step is under way."""
        return self._is_bound

    _is_bound = False

    def build_connector_worker_meta(self) -> Told | None:
        """Return fresh leases for the scheduler to hand out, when it has few left."""
        if len(self._spare) > _FEW:
            return None
        fresh = [self.engine.lease() for _ in range(_AT_ONCE)]
        self._spare.update((lease.token, lease) for lease in fresh)
        return Told(leases={self.engine.name: tuple(one.token for one in fresh)})

    def clear_connector_metadata(self) -> None:
        """Forget it."""
        self._step, self._is_bound = Step(), False

    def start_load_kv(self, forward_context: Any = None, **how: Any) -> None:
        """Begin to fetch what this step's requests need, the first layers first."""
        for load in self._step.loads:
            try:
                self._loading[load.request] = load, self._begin(load)
            except StrettoError:
                self._loading[load.request] = load, []
                self._lost(load)

    def _begin(self, load: Load) -> list[tuple[int, Transfer]]:
        mine = self._mine()
        until = self._deadline_s
        peers = [self.engine.connect(name).wait(until) for name in load.engines]
        theirs = [peer.region(_KV).wait(until) for peer in peers]
        dealt = deal([region.layout for region in theirs], [mine.layout])
        begun = []
        for layer in range(*self._range(mine.layout)):
            for (nth, _), plans in dealt.plans.items():
                for made in plans:
                    only = {name: (a, b) for name, a, b in made.only}
                    low, high = only.get("L", (layer, layer + 1))
                    if not low <= layer < high:
                        continue
                    only["L"] = layer, layer + 1
                    source = theirs[nth][list(load.remote_blocks)].only(**only)
                    target = mine[list(load.local_blocks)].first(load.tokens)
                    lease = load.lease.get(load.engines[nth], b"")
                    x = source.get(target, deadline=until, lease=lease)
                    begun.append((layer, x))
        return begun

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Return when a layer of all requests is here, or is known to have failed."""
        layer = self._layer(layer_name)
        for load, begun in self._loading.values():
            for at, transfer in begun:
                if at == layer:
                    self._settle(load, transfer)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any = None, attn_metadata: Any = None,
        **how: Any,
    ) -> None:  # fmt: skip
        """Send a layer of this step's requests, while the next one is computed.

        On a GPU, after what its stream was given; `stream=` names another.
        """
        layer = self._layer(layer_name)
        for save in self._step.saves:
            peer = self.engine.connect(save.engine).wait(self._deadline_s)
            target = peer.region(_KV).wait(self._deadline_s)
            source = self._mine()[list(save.local_blocks)].first(save.tokens)
            x = target[list(save.remote_blocks)].layer(layer).put(
                source.layer(layer), deadline=self._deadline_s, lease=save.lease,
                **({"stream": how["stream"]} if "stream" in how else {}),
            )  # fmt: skip
            self._saving.append((save, x))

    def wait_for_save(self) -> None:
        """Return when all layers of this step are where they belong; tell who waits."""
        saving, self._saving = self._saving, []
        for save, transfer in saving:
            stats = transfer.wait(self._deadline_s)
            self._count("saves", stats.nbytes, stats.seconds)
            del save
        for save in self._step.saves:
            peer = self.engine.connect(save.engine).wait(self._deadline_s)
            peer.notify(done_tag(save.request))

    def get_finished(
        self, finished_req_ids: Iterable[str] = ()
    ) -> tuple[set[str], set[str]]:
        """Return requests whose blocks were fetched from here, and those that came.

        Of leases that the scheduler handed out, those are named that it has told of in
        `finished_req_ids`, now or before.
        """
        self._told.update(set(finished_req_ids) & self._by_scheduler)
        sent = set()
        for request, (lease, seen) in list(self._leases.items()):
            waits = request in self._by_scheduler and request not in self._told
            if not waits and seen.done():
                del self._leases[request]
                seen.wait(0)
                lease.end(self._deadline_s)
                sent.add(request)
        sent |= self._given_up & (self._told | (self._given_up - self._by_scheduler))
        self._given_up -= sent
        self._told -= sent
        self._by_scheduler -= sent
        received, self._received = self._received, set()
        for request, (load, begun) in list(self._loading.items()):
            if all(transfer.done() for _, transfer in begun):
                for _, transfer in begun:
                    self._settle(load, transfer)
                self._settled -= {id(transfer) for _, transfer in begun}
                del self._loading[request]
                received.add(request)
                self._tell(load)
        return sent, received

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return blocks of ours that hold nothing to rely on; each is told once."""
        failed, self._failed = self._failed, set()
        return failed

    def get_kv_connector_stats(self) -> dict[str, float]:
        """Return how much was moved since it was last asked."""
        stats, self._stats = self._stats, dict.fromkeys(self._stats, 0)
        return stats

    def handle_preemptions(self, kv_connector_metadata: Step | Iterable[str]) -> None:
        """Take back what was begun for requests that give their blocks away."""
        given = kv_connector_metadata
        for request in given.preempted if isinstance(given, Step) else given:
            for _, transfer in self._loading.pop(request, (None, []))[1]:
                transfer.cancel()

    def shutdown(self) -> None:
        """End the engine."""
        self.engine.close()

    # Blocks that rest until somebody has fetched them.

    def lease(self, request: str, readers: int = 1) -> bytes:
        """Keep a request's blocks until so many have fetched them; see `get_finished`.

        Who fetches passes the token, so that late ones get nothing that is not theirs.
        """
        made = self.engine.lease()
        seen = self.engine.notified(done_tag(request), readers)
        self._leases[request] = made, seen
        return made.token

    def end_lease(self, request: str) -> None:
        """Give a request's blocks away although nobody fetched them."""
        found = self._leases.pop(request, None)
        if found is not None:
            found[0].end(self._deadline_s)

    def saved(self, request: str, writers: int = 1) -> Any:
        """Return what waits for a request that others put here."""
        return self.engine.notified(done_tag(request), writers)

    # Inside.

    def _mine(self) -> Region:
        if self._region is None:
            raise CallError("no cache is registered: call register_kv_caches")
        return self._region

    def _layer(self, name: str) -> int:
        if not self._layers and self._region is not None:
            return layer_number(name)
        if name not in self._layers:
            raise CallError(f"no layer {name!r}; registered: {', '.join(self._layers)}")
        return self._layers[name]

    def _range(self, layout: Layout) -> tuple[int, int]:
        axis = layout.axis("L")
        return axis.start, axis.stop

    def _settle(self, load: Load, transfer: Transfer) -> None:
        if id(transfer) in self._settled:
            return
        self._settled.add(id(transfer))
        try:
            stats = transfer.wait(self._deadline_s)
        except StrettoError as e:
            self._lost(load, getattr(e, "blocks_failed", ()))
        else:
            self._count("loads", stats.nbytes, stats.seconds)

    def _lost(self, load: Load, blocks: Iterable[int] = ()) -> None:
        self._failed.update(tuple(blocks) or load.local_blocks)
        self._stats["errors"] += 1

    def _count(self, what: str, nbytes: int, seconds: float) -> None:
        self._stats[what] += 1
        self._stats["bytes"] += nbytes
        self._stats["seconds"] += seconds

    def _tell(self, load: Load) -> None:
        """Let the holders of blocks know that they may use them again."""
        for name in load.engines:
            try:
                self.engine.connect(name).wait(self._deadline_s).notify(
                    done_tag(load.request)
                )
            except StrettoError:
                continue  # who is gone keeps nothing
