"""Serving engines of others: routes, vLLM's workers, verl's checkpoint engines."""

import asyncio
import contextlib
import dataclasses
import itertools
import sys
import threading
import time
import types
import uuid

import numpy as np
import pytest
from tests.host.weights.servers import serving, sglang, vllm

from stretto import weights
from stretto.errors import (
    CallError,
    MissingExtraError,
    TransferError,
    TransferTimeout,
)
from stretto.transfer import Engine
from stretto.weights.serving import verl
from stretto.weights.serving import vllm as plug_in
from stretto.weights.serving.routes import SglangRoutes, VllmRoutes
from stretto.weights.serving.verl import StrettoCheckpointEngine

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


def test_vllm_is_paused_for_four_phases():
    """In their order, with their bodies; then it goes on with the version."""
    with serving(vllm) as (server, url):
        routes = VllmRoutes(url)
        routes.init({"name": "policy", "trainers": ["t"], "replica": "r", "epoch": "e"})
        routes.update(7)
    paths = [path for path, _ in server.asked]

    assert ["/init_weight_transfer_engine", "/pause", "/start_weight_update",
            "/update_weights", "/finish_weight_update", "/resume"] == paths  # fmt: skip
    assert {"update_info": {"version": 7}} == server.asked[3][1]
    assert (False, "7", False) == (server.paused, server.version, routes.is_in_pieces)


@pytest.mark.parametrize("route", ["/update_weights", "/finish_weight_update"])
@pytest.mark.parametrize(
    ("bad", "kind", "said"),
    [
        ("fails", TransferError, "HTTP 500.*a worker has died.*it stays paused"),
        ("hangs", TransferTimeout, r"no answer within 0\.3 s; it stays paused"),
        ("dies", TransferError, "it stays paused"),
        ("babbles", TransferError, "no JSON; it stays paused"),
    ],
)
def test_a_server_that_fails_in_the_middle_stays_paused(route, bad, kind, said):
    """It is named with its route; updated again it goes on."""
    with serving(vllm) as (server, url):
        routes = VllmRoutes(url, timeout=0.3)
        server.bad[route] = bad
        with pytest.raises(kind, match=f"{url}{route}: .*{said}|{said}"):
            routes.update(1)
        was_paused, in_pieces = server.paused, routes.is_in_pieces
        server.bad.clear()
        server.hangs.set()
        VllmRoutes(url).update(2)

        assert (True, True) == (was_paused, in_pieces)
        assert (False, "2") == (server.paused, server.version)


@pytest.mark.parametrize(
    ("how", "body"),
    [
        ("disk", {"model_path": "/m"}),
        ("tensor", {"serialized_named_tensors": ["x"]}),
        ("distributed", {"names": [], "dtypes": [], "shapes": []}),
        ("ipc", {"zmq_handles": {}}),
    ],
)
def test_sglang_takes_a_version_by_each_of_its_ways(how, body):
    """Paused, with its caches flushed; what it refuses leaves it paused."""
    with serving(sglang) as (server, url):
        routes = SglangRoutes(url)
        routes.update(3, how, body)
        went_on, version = not server.paused, server.version
        with pytest.raises(TransferError, match=r"field is missing.*stays paused"):
            routes.update(4, how, {})
        stays = server.paused
        with pytest.raises(CallError, match="SGLang has disk, tensor"):
            routes.update(5, "pigeon", {})

    assert (True, "3", True) == (went_on, version, stays)
    assert server.asked[1][1]["flush_cache"] is True


def test_an_address_that_is_none_and_a_server_that_is_not_there():
    """Both are said; nothing was begun."""
    with pytest.raises(CallError, match="want http://HOST:PORT"):
        VllmRoutes("localhost:8000")
    with pytest.raises(TransferError, match="refused") as e:
        VllmRoutes("http://127.0.0.1:9").update(1)
    assert "paused" not in str(e.value)


@dataclasses.dataclass
class Info:
    """The bases of vLLM's own dataclasses."""


class Base:
    """As vLLM's `WeightTransferEngine`: what it keeps and what it calls."""

    def __init__(self, config, vllm_config, device, model):
        self.config, self.vllm_config = config, vllm_config
        self.parallel_config = vllm_config.parallel_config
        self.model_config, self.model = vllm_config.model_config, model

    def init(self, body):
        self.init_transfer_engine(self.init_info_cls(**body))

    def update_weights(self, body):
        self.receive_weights(self.update_info_cls(**body))


class Factory:
    """As vLLM's `WeightTransferEngineFactory`."""

    known = {}  # noqa: RUF012

    @classmethod
    def register_engine(cls, name, module, class_name=None):
        cls.known[name] = lambda: getattr(sys.modules[module], class_name)


@pytest.fixture
def worker_class(monkeypatch):
    """Yield the class that a stand-in of vLLM's factory finds."""
    said = {"WeightTransferEngine": Base, "WeightTransferInitInfo": Info,
            "WeightTransferUpdateInfo": Info}  # fmt: skip
    for name, held in (("base", said), ("factory", {"WeightTransferEngineFactory": Factory})):  # fmt: skip  # noqa: E501
        made = types.ModuleType(name)
        vars(made).update(held)
        monkeypatch.setitem(
            sys.modules, f"vllm.distributed.weight_transfer.{name}", made
        )
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    plug_in.engine_class.cache_clear()
    plug_in.register()
    yield Factory.known["stretto"]()
    plug_in.engine_class.cache_clear()


class Worker(torch.nn.Module):
    """A layer of vLLM's Llama of a rank: QKV fused, rows and columns cut."""

    def __init__(self, of):
        super().__init__()
        base = "model.layers.0.self_attn"
        self.held = {
            f"{base}.qkv_proj.weight": torch.zeros(16 // of, 8),
            f"{base}.o_proj.weight": torch.zeros(8, 8 // of),
            "model.norm.weight": torch.zeros(8),
        }

    def state_dict(self):
        return self.held


def config(rank, of):
    hf = types.SimpleNamespace(num_key_value_heads=2, tie_word_embeddings=False)
    parallel = types.SimpleNamespace(
        tensor_parallel_size=of, pipeline_parallel_size=1, rank=rank
    )
    return types.SimpleNamespace(
        parallel_config=parallel, model_config=types.SimpleNamespace(hf_config=hf)
    )


def at_once(*calls):
    """Call all of them at the same time; raise what the first raises."""
    errors = []

    def run(call):
        try:
            call()
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if errors:
        raise errors[0]


def test_workers_of_vllm_take_a_version_between_pauses(worker_class, monkeypatch):
    """Both ranks, in place; what is pushed while they decode waits for a pause."""
    job = uuid.uuid4().hex
    monkeypatch.setenv("STRETTO_JOB", job)
    base = "model.layers.0.self_attn"
    ours = {f"{base}.q_proj.weight": np.zeros((8, 8), np.float32),
            f"{base}.k_proj.weight": np.zeros((4, 8), np.float32),
            f"{base}.v_proj.weight": np.zeros((4, 8), np.float32),
            f"{base}.o_proj.weight": np.zeros((8, 8), np.float32),
            "model.norm.weight": np.zeros(8, np.float32)}  # fmt: skip
    with contextlib.ExitStack() as stack:
        trainer = stack.enter_context(Engine(f"trainer-{job}"))
        source = stack.enter_context(
            weights.publish(trainer, "policy", ours, epoch="run")
        )
        models = [Worker(2) for _ in range(2)]
        workers = [worker_class(None, config(r, 2), "cpu", models[r]) for r in range(2)]
        with pytest.raises(CallError, match="init_weight_transfer_engine first"):
            workers[0].start_weight_update()
        info = {"name": "policy", "trainers": [f"trainer-{job}"], "replica": f"r-{job}",
                "epoch": "run", "timeout_s": 30.0}  # fmt: skip
        at_once(*(lambda w=w: w.init(info) for w in workers))
        for one in workers:
            stack.callback(one.shutdown)
        for version in (1, 2):
            for nth, name in enumerate(ours):
                ours[name][...] = 10 * version + nth
            source.push(version)
            before = [m.held["model.norm.weight"].clone() for m in models]
            assert all((b == (14.0 if version == 2 else 0.0)).all() for b in before)
            for phase in (
                lambda w: w.start_weight_update(),
                lambda w, v=version: w.update_weights({"version": v}),
                lambda w: w.finish_weight_update(),
            ):
                at_once(*(lambda w=w, p=phase: p(w) for w in workers))
            for model in models:
                qkv = model.held[f"{base}.qkv_proj.weight"][:, 0].tolist()
                want = [10.0 * version] * 4 + [10.0 * version + 1] * 2
                assert [*want, *[10.0 * version + 2] * 2] == qkv
                assert (model.held[f"{base}.o_proj.weight"] == 10 * version + 3).all()
            assert version == workers[0].paused.version.counter
        for one in workers:
            one.paused._timeout = 0.2
        workers[0].start_weight_update()
        with pytest.raises(TransferTimeout, match="version 9 not within"):
            workers[0].update_weights({"version": 9})


def test_without_vllm_it_is_said():
    """In a word."""
    with pytest.raises(MissingExtraError, match="install vllm"):
        plug_in.register()


@pytest.mark.parametrize("late_s", [0, 1.5], ids=["at once", "one is late"])
def test_verls_engine_brings_all_tensors_to_all_ranks(monkeypatch, late_s):
    """As verl calls it: prepare, topology, groups, then send and receive at once."""
    monkeypatch.setenv("STRETTO_JOB", uuid.uuid4().hex)
    subscribe, called = verl.subscribe, itertools.count()

    def when_others_have_it(*given, **how):
        time.sleep(late_s * (next(called) % 2))
        return subscribe(*given, **how)

    monkeypatch.setattr(verl, "subscribe", when_others_have_it)
    ranks = [
        StrettoCheckpointEngine(1 << 20, device="cpu", timeout=20) for _ in range(4)
    ]
    told = [one.prepare() for one in ranks]
    trainer, rollout = StrettoCheckpointEngine.build_topology(2, 2, told)
    for nth, one in enumerate(ranks):
        side, at = (trainer, nth) if nth < 2 else (rollout, nth - 2)
        one.init_process_group(**{key: some[at] for key, some in side.items()})
    pulled = []

    async def taken(one):
        return {name: tensor async for name, tensor in one.receive_weights()}

    async def step(value):
        made = {
            "w": torch.full((6, 4), value, dtype=torch.bfloat16),
            "b": torch.arange(5.0) * value,
        }

        def weights_of():
            for name, tensor in made.items():
                pulled.append(name)
                yield name, tensor

        sent = [one.send_weights(weights_of()) for one in ranks[:2]]
        *_, first, second = await asyncio.gather(*sent, *map(taken, ranks[2:]))
        for got in (first, second):
            assert list(made) == list(got)
            assert all(torch.equal(made[n], got[n]) for n in made)

    try:
        for value in (1.0, 2.0):
            asyncio.run(step(value))
        assert ["w", "b"] * 4 == pulled  # each trainer rank runs its generator
    finally:
        for one in ranks:
            one.finalize()
            one.close()
    with pytest.raises(TransferError, match="come first"):
        asyncio.run(taken(StrettoCheckpointEngine()))
