"""The connector: pulled or pushed, from one rank or several, errors by block."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from stretto.errors import CallError
from stretto.transfer import Engine, kv_layout, loader
from stretto.transfer.connector import Scheduler, Worker
from stretto.transfer.connector.steps import Save, Step

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
SIZES = {"layers": 3, "heads": 4, "dim": 8, "dtype": "float32"}


def worker(name, job, layout, fill=0.0):
    """Return a worker, and its cache with axes in one order."""
    made = Worker(Engine(name, job=job), deadline_s=10.0)
    tensors = {f"l{n}": np.full(layout.shape, fill, np.float32) for n in range(3)}
    made.register_kv_caches(tensors, layout)
    order = [[a.name for a in layout.axes].index(n) for n in ("KV", "B", "T", "H", "D")]
    return made, [t.transpose(order) for t in tensors.values()]


def request(**params):
    """Return a request of ten tokens."""
    return SimpleNamespace(
        request_id="r1", num_tokens=10, kv_transfer_params=params or None
    )


def load(made, params, blocks):
    """Have a decode worker fetch a request; return what has finished."""
    scheduler = Scheduler([made.engine.name], block=8, role="decode")
    asked = request(**json.loads(json.dumps(params)))
    count, is_async = scheduler.get_num_new_matched_tokens(asked, 0)
    assert (10, True) == (count, is_async)
    scheduler.update_state_after_alloc(asked, blocks, count)
    made.bind_connector_metadata(scheduler.build_connector_meta())
    made.start_load_kv()
    for name in ("l0", "l1", "l2"):
        made.wait_for_layer_load(name)
    made.clear_connector_metadata()
    return made.get_finished()[1]


@pytest.fixture
def prefill(request):
    """Return two tensor-parallel prefill workers, and what they say of a request."""
    loader.load()
    job = request.node.name
    some = []
    for rank in range(2):
        layout = kv_layout("vllm/flash", blocks=8, block=4, tp=(rank, 2), **SIZES)
        some.append(worker(f"p{rank}", job, layout, fill=rank + 1.0))
    scheduler = Scheduler(["p0", "p1"], block=4, role="prefill")
    leases = {w.engine.name: w.lease("r1") for w, _ in some}
    asked = SimpleNamespace(request_id="r1", num_tokens=10, kv_transfer_params=None)
    rests, params = scheduler.request_finished(asked, [5, 0, 2], leases)
    assert rests
    yield job, some, params
    for made, _ in some:
        made.shutdown()


def test_one_rank_fetches_from_two_and_both_hear_of_it(prefill):
    """Heads come from where they are; blocks may be used again when all has come."""
    job, some, params = prefill
    layout = kv_layout("vllm/flashinfer", blocks=4, block=8, **SIZES)
    made, caches = worker("d", job, layout)
    try:
        assert {"r1"} == load(made, params, [3, 1])
        assert set() == made.get_block_ids_with_load_errors()
        for cache in caches:
            assert (cache[:, 3, :, :2] == 1.0).all()
            assert (cache[:, 3, :, 2:] == 2.0).all()
            assert (cache[:, 1, :2, :2] == 1.0).all()
            assert (cache[:, 1, 2:] == 0.0).all()
            assert (cache[:, [0, 2]] == 0.0).all()
        for prefilled, _ in some:
            prefilled.engine.notified(b"flush", 1).done()
            for _ in range(1000):
                sent, _ = prefilled.get_finished()
                if sent:
                    break
            assert {"r1"} == sent
        assert made.get_kv_connector_stats()["loads"] == 6
    finally:
        made.shutdown()


def test_blocks_that_were_given_away_are_errors_of_ours(prefill):
    """What cannot be loaded is named by block, and nothing is raised."""
    job, some, params = prefill
    some[0][0].end_lease("r1")
    made, _ = worker("d", job, kv_layout("vllm/flash", blocks=4, block=8, **SIZES))
    try:
        assert {"r1"} == load(made, params, [3, 1])
        assert {3, 1} == made.get_block_ids_with_load_errors()
        assert set() == made.get_block_ids_with_load_errors()
        assert made.get_kv_connector_stats()["errors"] >= 1
    finally:
        made.shutdown()


def test_layers_are_pushed_while_they_are_computed(request):
    """Each when it is saved; decode hears of it when all are there."""
    job = request.node.name
    layout = kv_layout("vllm/flash", blocks=6, block=4, **SIZES)
    ours, caches = worker("p", job, layout)
    theirs, held = worker("d", job, layout)
    try:
        save = Save(request="r2", engine="d", remote_blocks=(4, 1), local_blocks=(0, 3),
                    tokens=7)  # fmt: skip
        ours.bind_connector_metadata(Step(saves=(save,)))
        there = theirs.saved("r2")
        for layer in range(3):
            caches[layer][:, [0, 3]] = layer + 1.0
            ours.save_kv_layer(f"l{layer}")
        assert not there.done()
        ours.wait_for_save()
        there.wait(10)
        for layer in range(3):
            assert (held[layer][:, 4] == layer + 1.0).all()
            assert (held[layer][:, 1, :3] == layer + 1.0).all()
            assert (held[layer][:, 1, 3:] == 0.0).all()
    finally:
        ours.shutdown()
        theirs.shutdown()


def test_a_layer_that_was_not_registered_is_named(request):
    """With those that were."""
    made, _ = worker("p", request.node.name, kv_layout("vllm/flash", blocks=2, block=2,
                                                       **SIZES))  # fmt: skip
    with pytest.raises(CallError, match="no layer 'l9'; registered: l0, l1, l2"):
        made.save_kv_layer("l9")
    made.shutdown()


def test_leases_come_from_workers_by_the_scheduler(request):
    """As vLLM runs it: nothing but what its own calls pass; and too late is late."""
    job = request.node.name
    layout = kv_layout("vllm/flash", blocks=8, block=4, **SIZES)
    ours, _ = worker("p0", job, layout, fill=5.0)
    theirs, held = worker("d", job, kv_layout("vllm/flash", blocks=4, block=8, **SIZES))
    scheduler = Scheduler(["p0"], block=4, role="prefill", keep_s=0.2)
    try:
        told = ours.build_connector_worker_meta()
        assert ours.build_connector_worker_meta() is None
        output = SimpleNamespace(finished_sending=None, kv_connector_worker_meta=told)
        assert [] == scheduler.update_connector_output(output)
        for name in ("r1", "r2"):
            asked = SimpleNamespace(
                request_id=name, num_tokens=10, kv_transfer_params=None
            )
            rests, params = scheduler.request_finished(asked, [5, 0, 2])
            assert rests
            assert {"p0"} == set(params["leases"])
            if name == "r1":
                first = params
            assert scheduler.has_pending_push_work()
            ours.bind_connector_metadata(scheduler.build_connector_meta(None))
            assert ours.has_connector_metadata()
        assert {"r1"} == load(theirs, first, [3, 1])
        assert (held[0][:, 3] == 5.0).all()
        assert (set(), set()) == ours.get_finished(set())
        sent = set()
        for _ in range(1000):
            sent |= ours.get_finished({"r1", "r2"})[0]
            if sent:
                break
            time.sleep(0.001)
        assert {"r1"} == sent
        done = SimpleNamespace(finished_sending=sent, kv_connector_worker_meta=None)
        scheduler.update_connector_output(done)
        time.sleep(0.25)
        assert ["r2"] == scheduler.update_connector_output(())
        ours.bind_connector_metadata(scheduler.build_connector_meta(None))
        assert {"r2"} == ours.get_finished(set())[0]
        assert {"r1"} == load(theirs, params, [0, 2])  # the name is the stand-in's
        assert {0, 2} == theirs.get_block_ids_with_load_errors()
    finally:
        ours.shutdown()
        theirs.shutdown()


def test_one_tensor_of_all_layers_is_found_by_numbers_in_names(request):
    """And what a scheduler preempts is taken back."""
    job = request.node.name
    layout = kv_layout("vllm/cross", blocks=6, block=4, **SIZES)
    made = Worker(Engine("p", job=job), layout=layout, deadline_s=10.0)
    made.register_cross_layers_kv_cache(np.zeros(layout.shape, np.float32))
    other = Worker(Engine("d", job=job), layout=layout, deadline_s=10.0)
    cache = np.zeros(layout.shape, np.float32)
    other.register_cross_layers_kv_cache(cache, None)
    try:
        save = Save(request="r", engine="d", remote_blocks=(1,), local_blocks=(0,),
                    tokens=4)  # fmt: skip
        made.bind_connector_metadata(Step(saves=(save,)))
        made._region.holds[0, 2] = 3.0
        made.save_kv_layer("model.layers.2.self_attn.attn")
        made.wait_for_save()
        assert (cache[1, 2] == 3.0).all()
        assert not cache[1, :2].any()
        with pytest.raises(CallError, match="one number"):
            made.save_kv_layer("model.attn")
        made.handle_preemptions(Step(preempted=("r",)))
    finally:
        made.shutdown()
        other.shutdown()
