"""The connector in the order in which vLLM calls, with blocks that are reused at once.

Every value that decode reads is compared; what is free is poisoned, and is the next
that is given out. See serving.py.
"""

import json
import random
import uuid
from pathlib import Path

import pytest
from tests.host.transfer.serving import Instance, scenario
from tests.host.transfer.serving_child import (
    DECODES,
    Child,
    all_free,
    prompts,
    serve,
    starting,
    until,
)
from tests.host.transfer.serving_rank import STOPPED

from stretto.errors import CallError
from stretto.transfer import Engine
from stretto.transfer.connector import CacheGroup, Worker

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
CALLS = Path(__file__).parents[2] / "pure" / "transfer" / "vllm_calls.json"
HYBRID = (CacheGroup(block=4), CacheGroup(block=4, window=9))


start = pytest.fixture(starting, name="start")


def test_calls_are_in_the_order_of_vllm(start):
    """Those that vLLM 0.33 made in the same scenario, one by one."""
    how = {"groups": (CacheGroup(block=16),), "budget": 256}
    prefill, decode, calls = start(**how), start(**how), []
    scenario(prefill, decode, calls)
    calls = [call for call in calls if not call.endswith("has_pending_push_work")]
    assert json.loads(CALLS.read_text())["calls"] == calls


KINDS = {
    "one": ({}, {}),
    "few blocks": ({"blocks": 24}, {"blocks": 20}),
    "overlapped": ({"overlap": 2, "blocks": 30}, {"overlap": 2, "blocks": 30}),
    "2 to 1": ({"ranks": 2}, {}),
    "1 to 2": ({}, {"ranks": 2}),
    "4 to 2": ({"ranks": 4}, {"ranks": 2}),
    "chunked": ({"budget": 7}, {"budget": 7}),
    "larger here": ({}, {"groups": (CacheGroup(block=8),)}),
    "larger there": ({"groups": (CacheGroup(block=8),)}, {}),
    "prefix": ({}, {"cached": 8}),
    "prefix in a larger block": ({"groups": (CacheGroup(block=8),)}, {"cached": 4}),
    "windows": ({"groups": HYBRID}, {"groups": HYBRID, "blocks": 30}),
    "windows, 2 to 1": ({"groups": HYBRID, "ranks": 2}, {"groups": HYBRID}),
    "by layer": ({}, {"by_layer": True}),
    "by address": ({"far": True}, {"far": True}),
    "by address, 2 to 2": ({"far": True, "ranks": 2}, {"far": True, "ranks": 2}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_is_right_while_blocks_are_reused(start, kind):
    """However the two sides are laid out, and wherever they are."""
    there, here = KINDS[kind]
    prefill, decode = start(**there), start(**here)
    made = serve(prefill, decode, prompts(40, seed=len(kind)))
    assert len(made) == 40
    assert all(request.status == STOPPED for request in made.values())
    assert not any(request.failed for request in made.values())
    came = sum(request.came for request in made.values())
    prompt = sum(request.num_prompt_tokens for request in made.values())
    if kind == "prefix in a larger block":
        assert came < prompt * 0.2  # it would overwrite what is here
    elif "prefix" in kind or "windows" in kind:
        assert prompt * 0.4 < came < prompt
    else:
        assert came >= prompt - len(made)
    until(lambda: all_free(prefill), prefill.step, decode.step)
    for side, how in ((prefill, there), (decode, here)):
        blocks = how.get("blocks", 64)
        assert [blocks - 1] * len(side.groups) == [len(some) for some in side.free]


@pytest.mark.parametrize("far", [False, True])
def test_two_hundred_requests_are_kept_at_once(start, far):
    """In another process; all are fetched, and then all blocks are free there."""
    prefill = start(Child, blocks=2500, far=far, budget=4000)
    decode = start(blocks=300, far=far, budget=600, overlap=2)
    asked = prompts(200, seed=3)
    for name, tokens in asked.items():
        prefill.add(name, tokens, dict(DECODES))
    until(lambda: len(prefill.told) == 200, prefill.step)
    assert all(prefill.told.values())
    assert len(prefill.counts()["requests"]) == 200
    told, prefill.told = dict(prefill.told), {}
    made = [decode.add(f"at {n}", asked[n], params, 2) for n, params in told.items()]
    until(lambda: not decode.has_requests(), decode.step)
    assert not [r.request_id for r in made if r.wrong]
    assert not [r.request_id for r in made if r.failed]
    assert sum(r.came for r in made) == sum(r.num_prompt_tokens for r in made)
    until(lambda: all_free(prefill), decode.step)
    assert prefill.counts()["free"] == [2499]


def test_the_first_step_hands_a_lease_out(start):
    """A request that is done in it is fetched, before prefill has done another."""
    prefill, decode = start(), start()
    prefill.add("r", range(11), dict(DECODES))
    prefill.step()
    request = decode.add("at r", range(11), prefill.told["r"], 2)
    until(lambda: not decode.has_requests(), decode.step)
    assert (11, 0, False) == (request.came, request.wrong, request.failed)


@pytest.mark.parametrize("seed", range(4))
def test_requests_are_aborted_and_preempted_in_every_state(start, seed):
    """At any time, on both sides: the others are right, and no block is lost."""
    rng = random.Random(seed)
    groups = HYBRID if seed % 2 else (CacheGroup(block=4),)
    how = {"groups": groups, "overlap": 1 + seed // 2}
    prefill = start(blocks=40, budget=20, ranks=1 + seed % 2, **how)
    decode = start(blocks=40, budget=20, **how)

    most = iter(range(40))  # a slow engine is asked more often

    def mood():
        for side in (prefill, decode):
            if side.requests and rng.random() < 0.1 and next(most, None) is not None:
                side.abort(rng.choice(list(side.requests)))
            if side.running and not side.under_way and rng.random() < 0.1:
                side.preempt()

    made = serve(prefill, decode, prompts(80, seed), mood=mood)
    assert sum(request.status == STOPPED for request in made.values()) > 20
    until(lambda: all_free(prefill), prefill.step, decode.step)
    for side in (prefill, decode):
        assert [39] * len(groups) == [len(some) for some in side.free]


def test_both_ways(start):
    """What decode has made is kept for the next turn, and fetched by prefill."""
    prefill, decode = start(), start()
    prefill.add("one", range(21), dict(DECODES))
    until(lambda: "one" in prefill.told, prefill.step)
    turn = {**prefill.told["one"], **DECODES}
    first = decode.add("at one", range(21), turn, 8)
    until(lambda: "at one" in decode.told, decode.step)
    back = decode.told["at one"]
    assert back["remote_num_tokens"] == first.num_tokens - 1  # the last is not computed
    longer = [*first.tokens, *range(7)]
    second = prefill.add("two", longer, {**back, **DECODES})
    until(lambda: "two" in prefill.told, prefill.step, decode.step)
    assert (28, 0) == (second.came, second.wrong)
    third = decode.add("at two", longer, prefill.told["two"], 2)
    until(lambda: all_free(prefill) and all_free(decode), prefill.step, decode.step)
    assert (len(longer), 0) == (third.came, third.wrong)


def test_parameters_that_mean_nothing_are_named():
    """Not those of another model, nor of a client's making."""
    made = Instance(f"i{uuid.uuid4().hex[:8]}")
    made.add("r", range(9), dict(DECODES))
    made.step()
    good = made.told["r"]
    try:
        for change in ({"token": "no"}, {"engines": []}, {"model": "other"},
                       {"block_sizes": [0]}, {"remote_num_tokens": None},
                       {"remote_block_ids": [[1], [2]]}):  # fmt: skip
            with pytest.raises(CallError):
                made.add(f"bad {change}", range(9), {**good, **change})
    finally:
        made.close()


def test_who_listens_everywhere_says_where_others_come():
    """0.0.0.0 on another host is that host."""
    name = f"w{uuid.uuid4().hex[:8]}"
    with Engine(name, listen="0.0.0.0:0", secret=b"s" * 32) as made:
        with pytest.raises(CallError, match="advertise"):
            Worker(made, layout="B=1 T=1 uint8").get_handshake_metadata()
        told = Worker(made, advertise="10.0.0.1:5").get_handshake_metadata()
        assert (made.name, "10.0.0.1:5") == (told.name, told.address)
