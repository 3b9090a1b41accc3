"""Whatever moves bytes follows a plan that was proved, on both sides of every way."""

import dataclasses
import uuid

import numpy as np
import pytest
from tests.host.transfer.conftest import SECRET
from tests.pure.transfer.oracle import memory

from stretto.errors import PlanError, TransferError
from stretto.transfer import Engine, kv_layout
from stretto.transfer.copying.words import Mode
from stretto.transfer.copying.work import CopyWork
from stretto.transfer.engine.peer import Peer
from stretto.transfer.plans import proving as proofs
from stretto.transfer.stores import Files

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]
WAIT = 20
SIZES = {"layers": 3, "heads": 4, "dim": 8, "dtype": "float16"}
OURS = kv_layout("vllm/flash", blocks=9, block=4, **SIZES)
THEIRS = kv_layout("vllm/flashinfer", blocks=6, block=8, tp=(1, 2), **SIZES)
LARGE = "A=3 C=700001 uint8"
VERBS = ("put", "get", "prepare_put", "prepare_get")


@pytest.fixture
def fresh():
    """Have nothing be proved already, before and after."""
    for keeps in (proofs._proved, proofs._cut):
        keeps.cache_clear()
    yield
    for keeps in (proofs._proved, proofs._cut):
        keeps.cache_clear()


@pytest.fixture(params=["same process", "shared memory", "stage", "tcp", "store"])
def views(request, fresh, monkeypatch, tmp_path):
    """Yield pairs of views, of a peer or a store and of ours, by a way."""
    way, job = request.param, uuid.uuid4().hex
    if way not in ("same process", "store"):
        monkeypatch.setattr(Peer, "is_self", property(lambda _: False))
    with (
        Engine("there", job=job, secret=SECRET, listen="127.0.0.1:0") as there,
        Engine("here", job=job, secret=SECRET) as here,
    ):
        ours = here.share(memory(OURS), "kv", OURS)
        flat = here.share(np.ones((3, 700001), np.uint8), "flat", LARGE)
        pages = ours[[1, 0, 5]].first(10)  # the last page is not full, nor is a chunk
        if way == "store":
            store = Files(tmp_path)
            kept = here.stored(store, "kv", THEIRS), here.stored(store, "flat", LARGE)
        else:
            arena = way == "shared memory"
            make = there.arena if arena else (lambda n: np.zeros(n, np.uint8))
            there.share([make(THEIRS.part_bytes) for _ in range(3)], "kv", THEIRS)
            there.share(make(3 * 700001), "flat", LARGE)
            where = there.address if way == "tcp" else "there"
            peer = here.connect(where).wait(WAIT)
            peer.reaches, peer.why_not = False, "the test says so"
            kept = peer.region("kv").wait(WAIT), peer.region("flat").wait(WAIT)
        yield [(kept[0][[2, 4]].first(10), pages), (kept[1].view, flat.view)]
        if way == "store":
            store.close()


def do(view, verb, other):
    """Do a transfer, prepared or not."""
    made = getattr(view, verb)(other)
    return made() if verb.startswith("prepare") else made.wait(WAIT)


@pytest.mark.parametrize("verb", VERBS)
def test_every_box_that_is_moved_was_proved(views, verb, monkeypatch):
    """Whole, the last and shorter chunk, and pieces of what is cut; on both sides."""
    plans, boxes, moved = set(), set(), []
    prove, prove_cut, begin = proofs.prove, proofs.prove_cut, CopyWork.__init__

    def noting(plan):
        prove(plan)
        plans.add((plan.src, plan.dst, plan.only))
        boxes.update(plan.boxes)

    def noting_cut(plan, box, pieces):
        prove_cut(plan, box, pieces)
        assert box in boxes
        boxes.update(pieces)

    def made(work, plan, run, *args, **how):
        if how.get("mode") not in (Mode.SUM_SRC, Mode.SUM_DST):
            moved.append(((plan.src, plan.dst, plan.only), run.boxes))
        begin(work, plan, run, *args, **how)

    monkeypatch.setattr(proofs, "prove", noting)
    monkeypatch.setattr(proofs, "prove_cut", noting_cut)
    monkeypatch.setattr(CopyWork, "__init__", made)
    is_store = views[0][0].region.kind == "store"
    for view, other in views:
        if is_store:
            view.put(other).wait(WAIT)
        do(view, verb, other)
    assert moved
    for plan, some in moved:
        assert plan in plans
        assert is_store or set(some) <= boxes  # a store's are runs, spelled out


@pytest.mark.parametrize("verb", VERBS)
def test_a_plan_that_is_wrong_moves_nothing(views, verb, monkeypatch):
    """Whoever planned it: it is refused before a byte is touched."""
    right = proofs.plan

    def wrong(*layouts, **how):
        made = right(*layouts, **how)
        one = dataclasses.replace(made.boxes[0], dst_at=made.boxes[0].dst_at + 2)
        return dataclasses.replace(made, boxes=(one, *made.boxes[1:]))

    monkeypatch.setattr(proofs, "plan", wrong)
    for view, other in views:
        with pytest.raises(PlanError):
            do(view, verb, other)


def test_a_peer_proves_for_itself(fresh, monkeypatch):
    """What it is asked for is planned and proved there, whatever we have proved."""
    job = uuid.uuid4().hex
    with (
        Engine("there", job=job, secret=SECRET, listen="127.0.0.1:0") as there,
        Engine("here", job=job, secret=SECRET) as here,
    ):
        held = np.zeros(64, np.uint8)
        there.share(held, "box")
        region = here.connect(there.address).wait(WAIT).region("box").wait(WAIT)
        region.put(np.zeros(64, np.uint8)).wait(WAIT)

        def refuse(*layouts, **how):
            raise PlanError("no proof of it")

        monkeypatch.setattr("stretto.transfer.ways.request.proved", refuse)
        with pytest.raises(TransferError, match="no proof of it"):
            region.put(np.ones(64, np.uint8)).wait(WAIT)
        assert not held.any()


def test_a_plan_is_proved_once(fresh, monkeypatch):
    """However often it runs, and by whatever views of these layouts."""
    count, prove = [], proofs.prove
    monkeypatch.setattr(proofs, "prove", lambda plan: (count.append(plan), prove(plan)))
    with Engine(f"here-{uuid.uuid4().hex[:8]}") as here:
        a = here.share(memory(OURS), "a", OURS)
        b = here.share(memory(OURS), "b", OURS)
        for pages in ([1, 2], [3, 4, 5], [0]):
            b[pages].put(a[pages[::-1]]).wait(WAIT)
            a[pages].put(b[pages]).wait(WAIT)
    assert 1 == len(count)
