"""The connector: pulled or pushed, from one rank or several, errors by block."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from stretto.errors import CallError
from stretto.transfer import Engine, kv_layout
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
    """Have a decode worker fetch a request, layer by layer; return what has failed."""
    scheduler = Scheduler([made.engine.name], block=8, by_layer=True)
    asked = request(**json.loads(json.dumps(params)))
    count, is_async = scheduler.get_num_new_matched_tokens(asked, 0)
    assert (9, False) == (count, is_async)  # one is left to be computed
    scheduler.update_state_after_alloc(asked, blocks, count)
    made.bind_connector_metadata(scheduler.build_connector_meta())
    made.start_load_kv()
    for name in ("l0", "l1", "l2"):
        made.wait_for_layer_load(name)
    assert (set(), set()) == made.get_finished()  # who waits in a step needs no name
    scheduler.update_connector_output(
        SimpleNamespace(kv_connector_worker_meta=made.build_connector_worker_meta())
    )
    made.clear_connector_metadata()
    made.bind_connector_metadata(scheduler.build_connector_meta())  # tells prefill
    made.clear_connector_metadata()
    return made.get_block_ids_with_load_errors()


@pytest.fixture
def prefill(request):
    """Return two tensor-parallel prefill workers, and what they say of a request."""
    job = request.node.name
    some = []
    for rank in range(2):
        layout = kv_layout("vllm/flash", blocks=8, block=4, tp=(rank, 2), **SIZES)
        some.append(worker(f"p{rank}", job, layout, fill=rank + 1.0))
    scheduler = Scheduler(["p0", "p1"], block=4, role="prefill")
    asked = SimpleNamespace(
        request_id="r1", num_tokens=10, kv_transfer_params={"do_remote_decode": True}
    )
    assert scheduler.get_num_new_matched_tokens(asked, 0) == (0, False)
    scheduler.update_state_after_alloc(asked, [5, 0, 2], 0)
    step = scheduler.build_connector_meta()
    for made, _ in some:
        made.bind_connector_metadata(step)
        made.clear_connector_metadata()
    rests, params = scheduler.request_finished(asked, [5, 0, 2])
    assert rests
    yield job, some, params, scheduler
    for made, _ in some:
        made.shutdown()


def test_one_rank_fetches_from_two_and_both_hear_of_it(prefill):
    """Heads come from where they are; blocks may be used again when all has come."""
    job, some, params, _ = prefill
    layout = kv_layout("vllm/flashinfer", blocks=4, block=8, **SIZES)
    made, caches = worker("d", job, layout)
    try:
        assert load(made, params, [3, 1]) == set()
        for cache in caches:
            assert (cache[:, 3, :, :2] == 1.0).all()
            assert (cache[:, 3, :, 2:] == 2.0).all()
            assert (cache[:, 1, :1, :2] == 1.0).all()
            assert (cache[:, 1, 1:] == 0.0).all()
            assert (cache[:, [0, 2]] == 0.0).all()
        for prefilled, _ in some:
            until = time.monotonic() + 10
            while not (sent := prefilled.get_finished({"r1"})[0]):
                assert time.monotonic() < until
            assert {"r1"} == sent
        assert made.get_kv_connector_stats().reduce()["loads"] == 1
        assert made.get_kv_connector_stats() is None
    finally:
        made.shutdown()


def test_blocks_that_were_given_away_are_errors_of_ours(prefill):
    """What cannot be loaded is named by block, once, and nothing is raised."""
    job, some, params, _ = prefill
    for prefilled, _ in some:
        prefilled.bind_connector_metadata(Step(late=("r1",)))
        assert {"r1"} == prefilled.get_finished({"r1"})[0]
        assert prefilled.get_kv_connector_stats().reduce()["expired"] == 1
    made, _ = worker("d", job, kv_layout("vllm/flash", blocks=4, block=8, **SIZES))
    try:
        assert {3, 1} == load(made, params, [3, 1])
        assert set() == made.get_block_ids_with_load_errors()
        assert made.get_kv_connector_stats().reduce()["failed"] == 1
    finally:
        made.shutdown()


def test_a_push_waits_for_the_last_of_the_prompt():
    """Which is computed in chunks; blocks come meanwhile, and may be taken away."""
    scheduler = Scheduler(["p"], block=4)
    asked = request(push_to="d", push_blocks=[4, 1, 6], push_lease="")
    scheduler.update_state_after_alloc(asked, [7], 0)

    def output(count, fresh, new=(), resumed=(), before=4):
        old = SimpleNamespace(
            req_ids=[] if new else ["r1"], new_block_ids=[] if new else [fresh],
            num_computed_tokens=[] if new else [before], resumed_req_ids=set(resumed),
        )  # fmt: skip
        return SimpleNamespace(
            num_scheduled_tokens={"r1": count}, scheduled_new_reqs=new,
            scheduled_cached_reqs=old,
        )  # fmt: skip

    first = SimpleNamespace(req_id="r1", num_computed_tokens=0)
    assert not scheduler.build_connector_meta(output(4, None, [first])).saves
    assert not scheduler.build_connector_meta(output(4, ([3],))).saves
    (save,) = scheduler.build_connector_meta(output(2, ([5],), before=8)).saves
    assert ((7, 3, 5), 10) == (save.local_blocks, save.tokens)
    assert not scheduler.build_connector_meta(output(1, None, before=10)).saves
    scheduler.update_state_after_alloc(asked, [7], 0)
    scheduler.preempt("r1")
    assert not scheduler.build_connector_meta(output(10, None, before=0)).saves


def test_a_push_to_who_is_gone_fails_alone(request):
    """The step goes on; who waits hears nothing."""
    layout = kv_layout("vllm/flash", blocks=6, block=4, **SIZES)
    ours, _ = worker("p", request.node.name, layout)
    try:
        save = Save(
            request="r2", engine="nobody", remote_blocks=(4,), local_blocks=(0,),
            tokens=4,
        )  # fmt: skip
        ours.bind_connector_metadata(Step(saves=(save,)))
        for layer in range(3):
            ours.save_kv_layer(f"l{layer}")
        ours.wait_for_save()
        assert ours.get_kv_connector_stats().reduce()["failed"] == 1
    finally:
        ours.shutdown()


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
        made._regions[0].holds[0, 2] = 3.0
        made.save_kv_layer("model.layers.2.self_attn.attn")
        made.wait_for_save()
        assert (cache[1, 2] == 3.0).all()
        assert not cache[1, :2].any()
        with pytest.raises(CallError, match="one number"):
            made.save_kv_layer("model.attn")
        made.handle_preemptions(Step(dropped=("r",)))
    finally:
        made.shutdown()
        other.shutdown()
