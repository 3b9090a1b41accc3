"""The connector as a class of vLLM's, where that is installed.

    --kv-transfer-config '{"kv_connector": "StrettoConnector", "kv_role": "kv_producer",
      "kv_connector_module_path": "stretto.transfer.connector.vllm",
      "kv_connector_extra_config": {"listen": "10.0.0.1:0"}}'

`StrettoConnector` is made when it is asked for. Of the extra configuration `listen` and
`advertise` say where other hosts come to a worker, `hop` by what bytes go, `keep_s` how
long blocks rest, `deadline_s` how long a load may take, and `by_layer` that a step
computes with what it loads. With `listen` the job's secret is needed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from stretto.errors import CallError, MissingExtraError
from stretto.transfer.connector.defaults import Defaults, layer_number
from stretto.transfer.connector.groups import CacheGroup
from stretto.transfer.connector.scheduler import Scheduler
from stretto.transfer.connector.steps import EnginePlace, Step, Told
from stretto.transfer.connector.worker import Worker
from stretto.transfer.engine.engine import Engine

_BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
_LOG = logging.getLogger("stretto.transfer")
_OF_THE_BASE = ("bind_kv_cache_manager", "get_external_cache_hit_sources")
"""What vLLM's own class does better: it has its names for things."""
_CHECKED = ("on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc",
            "request_finished", "request_finished_all_groups")  # fmt: skip
"""What reads `kv_transfer_params`, which a client may have made up."""


def __getattr__(name: str) -> Any:
    """Return the class, made when vLLM asks for it."""
    if name == "StrettoConnector":
        return connector_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def connector_class() -> type:
    """Return the class that vLLM's factory makes; MissingExtraError: there is none."""
    try:
        base = importlib.import_module(_BASE)
    except ImportError as e:
        raise MissingExtraError(f"vLLM's connector interface: {e}; install vllm") from e
    base.KVConnectorMetadata.register(Step)
    base.KVConnectorHandshakeMetadata.register(EnginePlace)
    base.KVConnectorWorkerMetadata.register(Told)
    own = {n for side in (Scheduler, Worker) for n in dir(side) if n[0] != "_"}
    names = [n for n in vars(base.KVConnectorBase_V1) if n in own | {_HMA}] + [_HMA]
    forwarded = {
        n: _class_method(n) if isinstance(vars(Defaults).get(n), classmethod)
        else _forwarded(n)
        for n in names
        if n not in _OF_THE_BASE and callable(getattr(Scheduler, n, None) or
                                              getattr(Worker, n, None))
    }  # fmt: skip
    bases = (_Made, base.KVConnectorBase_V1, base.SupportsHMA)
    hits = importlib.import_module("vllm.v1.metrics.cache_hit_source").CacheHitSource
    inside = {
        **forwarded, "_cache_hit_source": hits.P2P, "__module__": __name__,
        "register_kv_caches": _Made.register_kv_caches,
    }  # fmt: skip
    made: type = type(base.KVConnectorBase_V1)("StrettoConnector", bases, inside)
    return made


_HMA = "request_finished_all_groups"


def _forwarded(name: str) -> Callable[..., Any]:
    """Return a method that hands on to the half that this is."""

    def method(self: Any, *args: Any, **how: Any) -> Any:
        side = self.side
        if side is None:  # a worker without a cache
            return None
        if name not in _CHECKED:
            return getattr(side, name)(*args, **how)
        try:
            return getattr(side, name)(*args, **how)
        except CallError as e:
            request = args[0]
            _LOG.warning("request %s is computed here: %s", request.request_id, e)
            request.kv_transfer_params = None
            return getattr(side, name)(*args, **how)

    method.__name__ = name
    return method


def _class_method(name: str) -> Any:
    return classmethod(lambda cls, *args, **how: getattr(Defaults, name)(*args, **how))


class _Made:
    """What is not handed on: how the halves are made."""

    side: Any

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """See vLLM's `KVConnectorBase_V1`."""
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]
        transfer = vllm_config.kv_transfer_config
        self._config, self._cache = vllm_config, kv_cache_config
        self._extra = dict(transfer.kv_connector_extra_config or {})
        self._groups = tuple(map(_group, kv_cache_config.kv_cache_groups))
        if len(tuple(kv_cache_config.transfer_group_ids)) != len(self._groups):
            raise CallError("a cache group that is not transferred; want all of them")
        self.side = None
        if role.name == "SCHEDULER":
            both = transfer.is_kv_producer and transfer.is_kv_consumer
            one = "prefill" if transfer.is_kv_producer else "decode"
            self.side = Scheduler(
                groups=self._groups, role="both" if both else one,
                keep_s=float(self._extra.get("keep_s", 30.0)),
                by_layer=bool(self._extra.get("by_layer", False)),
                model=self._model(), name=str(transfer.engine_id),
            )  # fmt: skip

    @property
    def requires_kv_delivery(self) -> bool:
        """Return whether somebody waits for what is computed here."""
        return bool(self._config.kv_transfer_config.is_kv_producer)

    def _model(self) -> str:
        """Return what both sides must have alike, as a few letters."""
        model = self._config.model_config
        layers = [group.layers for group in self._groups]
        said = repr((model.model, str(model.dtype), layers))
        if self._config.parallel_config.pipeline_parallel_size > 1:
            said = repr((model.model, str(model.dtype)))
        return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        """Start an engine, and share the caches of all groups."""
        extra, name = self._extra, self._config.kv_transfer_config.engine_id
        stage, rank = _ranks()
        engine = Engine(
            f"{name}-{stage}-{rank}".replace(":", "_"), listen=extra.get("listen"),
            hop=extra.get("hop", "tcp"),
        )  # fmt: skip
        groups = [
            CacheGroup(
                block=group.block, window=group.window, layers=group.layers,
                layout=self._layout(group, kv_caches, rank),
            )
            for group in self._groups
        ]  # fmt: skip
        self.side = Worker(
            engine, groups=groups, deadline_s=float(extra.get("deadline_s", 30.0)),
            advertise=str(extra.get("advertise", "")),
        )  # fmt: skip
        self.side.register_kv_caches(kv_caches)

    def _layout(self, group: CacheGroup, caches: Mapping[str, Any], rank: int) -> str:
        """Return how a group's tensors lie: pages, heads, tokens, and what each has."""
        some = [caches[name] for name in group.layers]
        shape = tuple(some[0].shape)
        if len(shape) != 4 or shape[2] != group.block:
            raise CallError(
                f"a cache of shape {shape}; want pages, heads, {group.block} tokens, "
                "and what each has"
            )
        model, parallel = self._config.model_config, self._config.parallel_config
        here, ranks = shape[1], parallel.tensor_parallel_size
        heads = here if model.use_mla else model.get_total_num_kv_heads()
        first = rank * heads // ranks
        if model.use_mla:
            first = 0
        total, start = len(some), 0
        if parallel.pipeline_parallel_size > 1:
            if len(self._groups) > 1:
                raise CallError("several cache groups in several pipeline stages")
            total = model.get_total_num_hidden_layers()
            start = min(layer_number(name) for name in group.layers)
        dtype = str(some[0].dtype).removeprefix("torch.")
        return (
            f"L={total}[{start}:{start + len(some)}] | B={shape[0]} "
            f"H={heads}[{first}:{first + here}] T={shape[2]} C={shape[3]} {dtype}"
        )


def _group(given: Any) -> CacheGroup:
    spec = given.kv_cache_spec
    kinds = {kind.__name__ for kind in type(spec).__mro__}
    if not kinds & {"FullAttentionSpec", "SlidingWindowSpec"}:
        raise CallError(f"a cache group of {type(spec).__name__}; want attention")
    window = spec.sliding_window if "SlidingWindowSpec" in kinds else 0
    return CacheGroup(
        block=spec.block_size, window=window, layers=tuple(given.layer_names)
    )


def _ranks() -> tuple[int, int]:
    """Return this worker's pipeline stage, and its rank there."""
    state = importlib.import_module("vllm.distributed.parallel_state")
    return state.get_pp_group().rank_in_group, state.get_tp_group().rank_in_group
