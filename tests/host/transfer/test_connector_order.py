"""The connector in the order in which vLLM calls, with blocks that are reused at once.

Every value that decode reads is compared; what is free is poisoned, and is the next
that is given out. See serving.py.
"""

import json
import os
import random
import select
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from tests.host import warm
from tests.host.transfer.conftest import ROOT
from tests.host.transfer.serving import Instance, scenario
from tests.host.transfer.serving_rank import STOPPED

from stretto.errors import CallError
from stretto.transfer import Engine, loader
from stretto.transfer.connector import Group, Worker

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
CALLS = Path(__file__).parents[2] / "pure" / "transfer" / "vllm_calls.json"
DECODES = {"do_remote_decode": True}
HYBRID = (Group(block=4), Group(block=4, window=9))


class Child:
    """Prefill in a process of its own."""

    def __init__(self, **how):
        self.name = f"p{uuid.uuid4().hex[:8]}"
        self.process = warm.Popen(
            ["-m", "tests.host.transfer.serving", self.name, json.dumps(how)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        self.told, self._rest = {}, b""
        while self._heard(10) != ["ready"]:
            pass

    def say(self, **what):
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def add(self, name, tokens, params):
        self.say(name=name, tokens=list(tokens), params=params)

    def abort(self, *names):
        self.say(abort=names)

    def _heard(self, seconds):
        """Return what it has said meanwhile."""
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return []
        got = os.read(self.process.stdout.fileno(), 1 << 20)
        *lines, self._rest = (self._rest + got).split(b"\n")
        return [json.loads(line) for line in lines]

    def step(self, seconds=0.0):
        """Take what it says: it steps on its own. Return what it was asked for."""
        answers = []
        for said in self._heard(seconds):
            assert "error" not in said, said
            if "free" in said:
                answers.append(said)
            else:
                self.told[said["name"]] = said["params"]
        return answers

    def counts(self):
        """Return what is free there, what requests it has, and its figures."""
        self.say(free=True)
        while not (answers := self.step(1.0)):
            assert self.process.poll() is None
        return answers[0]

    def close(self):
        self.process.kill()
        self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def start():
    """Yield what starts instances, here or in a process, and end them."""
    loader.load()
    some = []

    def make(kind=Instance, **how):
        name = () if kind is Child else (f"i{uuid.uuid4().hex[:8]}",)
        some.append(kind(*name, **how))
        return some[-1]

    yield make
    for made in some:
        made.close()


def until(what, *steps, seconds=40):
    """Step until something is so."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "not in time"
        for step in steps:
            step()


def prompts(count, seed=0, most=40):
    rng = random.Random(seed)
    return {
        f"r{n}": [rng.randrange(9000) for _ in range(rng.randrange(1, most))]
        for n in range(count)
    }


def serve(prefill, decode, asked, *, mood=None, outputs=3):
    """Have requests computed by one and gone on with by the other; return these."""
    made, left = {}, set(asked)
    for name, tokens in asked.items():
        prefill.add(name, tokens, dict(DECODES))

    def go_on():
        prefill.step()
        decode.step()
        for name, params in list(prefill.told.items()):
            del prefill.told[name]
            left.discard(name)
            if params is not None:
                made[name] = decode.add(f"at {name}", asked[name], params, outputs)
        if mood is not None:
            mood()

    until(lambda: not left and not decode.has_requests(), go_on)
    assert not any(request.wrong for request in made.values())
    return made


def all_free(prefill):
    if isinstance(prefill, Child):
        return not prefill.counts()["requests"]
    return not prefill.has_requests()


def test_calls_are_in_the_order_of_vllm(start):
    """Those that vLLM 0.33 made in the same scenario, one by one."""
    how = {"groups": (Group(block=16),), "budget": 256}
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
    "larger here": ({}, {"groups": (Group(block=8),)}),
    "larger there": ({"groups": (Group(block=8),)}, {}),
    "prefix": ({}, {"cached": 8}),
    "prefix in a larger block": ({"groups": (Group(block=8),)}, {"cached": 4}),
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
    assert not any(request.wrong or request.failed for request in made)
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
    groups = HYBRID if seed % 2 else (Group(block=4),)
    how = {"groups": groups, "overlap": 1 + seed // 2}
    prefill = start(blocks=40, budget=20, ranks=1 + seed % 2, **how)
    decode = start(blocks=40, budget=20, **how)

    def mood():
        for side in (prefill, decode):
            if side.requests and rng.random() < 0.1:
                side.abort(rng.choice(list(side.requests)))
            if side.running and not side.under_way and rng.random() < 0.1:
                side.preempt()

    made = serve(prefill, decode, prompts(80, seed), mood=mood)
    assert sum(request.status == STOPPED for request in made.values()) > 20
    until(lambda: all_free(prefill), prefill.step, decode.step)
    for side in (prefill, decode):
        assert [39] * len(groups) == [len(some) for some in side.free]


def test_what_nobody_fetches_is_free_again_and_old_parameters_give_nothing(start):
    """Late decode computes itself: it reads nothing that is another's by now."""
    prefill, decode = start(keep_s=0.3, blocks=20), start()
    prefill.add("r", range(30), dict(DECODES))
    until(lambda: all_free(prefill), prefill.step)
    for n in range(3):
        prefill.add(f"other {n}", range(50, 70), {})
    until(lambda: all_free(prefill), prefill.step)
    assert prefill.stats.reduce()["expired"] == 1
    request = decode.add("at r", range(30), prefill.told["r"], 2)
    until(lambda: not decode.has_requests(), decode.step)
    assert (True, 0, STOPPED) == (request.failed, request.wrong, request.status)
    assert decode.stats.reduce()["failed"] == 1


def test_blocks_rest_as_long_as_decode_says_that_it_waits(start):
    """And are free soon after it says so no more."""
    prefill = start(keep_s=0.6)
    decode = start(keep_s=0.6, blocks=9)
    prefill.add("r", range(20), dict(DECODES))
    until(lambda: "r" in prefill.told, prefill.step)
    decode.add("long", range(100, 128), {}, 10**6)
    decode.step()
    request = decode.add("at r", range(20), prefill.told["r"], 2)
    end = time.monotonic() + 1.8

    def go_on():
        prefill.step()
        decode.step()
        long = decode.requests["long"]
        if long.num_tokens > 32:  # it needs no block beyond those it has
            long.tokens = long.tokens[:29]
            long.num_computed_tokens = 28

    until(lambda: time.monotonic() > end, go_on)
    assert request.status == "WAITING"
    assert "r" in prefill.requests
    decode.abort("long")
    until(lambda: request.is_over, prefill.step, decode.step)
    assert (20, False, 0) == (request.came, request.failed, request.wrong)
    until(lambda: all_free(prefill), prefill.step, decode.step)
    prefill.add("s", range(20), dict(DECODES))
    until(lambda: "s" in prefill.told, prefill.step)
    decode.add("at s", range(20), prefill.told["s"], 2)
    decode.abort("at s")  # before it has any block
    until(lambda: all_free(prefill), prefill.step, decode.step, seconds=0.5)


def test_prefill_that_is_killed_costs_time_and_no_wrong_value(start):
    """Decode computes what did not come, whenever the other one died."""
    decode = start(deadline_s=3.0)
    for before in (True, False):
        prefill = start(Child)
        asked = prompts(6, seed=5)
        for name, tokens in asked.items():
            prefill.add(name, tokens, dict(DECODES))
        until(lambda p=prefill: len(p.told) == 6, prefill.step)
        if before:
            prefill.process.kill()
            prefill.process.wait(10)
        made = [
            decode.add(f"{before} {n}", asked[n], params, 2)
            for n, params in prefill.told.items()
        ]
        if not before:
            decode.step()
            prefill.process.kill()
        until(lambda: not decode.has_requests(), decode.step)
        assert all(request.status == STOPPED for request in made)
        assert not any(request.wrong for request in made)
        if before:
            assert all(request.failed for request in made)


def test_decode_that_is_gone_leaves_blocks_that_expire(start):
    """It never said that it was done."""
    prefill, decode = start(keep_s=0.5), start()
    prefill.add("r", range(20), dict(DECODES))
    until(lambda: "r" in prefill.told, prefill.step)
    decode.add("at r", range(20), prefill.told["r"], 2)
    decode.step()
    decode.close()
    until(lambda: all_free(prefill), prefill.step, seconds=5)
    assert len(prefill.free[0]) == 63


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
    loader.load()
    name = f"w{uuid.uuid4().hex[:8]}"
    with Engine(name, listen="0.0.0.0:0", secret=b"s" * 32) as made:
        with pytest.raises(CallError, match="advertise"):
            Worker(made, layout="B=1 T=1 uint8").get_handshake_metadata()
        told = Worker(made, advertise="10.0.0.1:5").get_handshake_metadata()
        assert (made.name, "10.0.0.1:5") == (told.name, told.address)
