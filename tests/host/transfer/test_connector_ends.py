"""Requests that nobody fetches, or no more, and sides that die: the KV connector."""

import pytest
from tests.host.transfer.serving_child import (
    DECODES,
    Child,
    all_free,
    prompts,
    starting,
    until,
)
from tests.host.transfer.serving_rank import STOPPED

from stretto.transfer.connector import fetching, keeping

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
start = pytest.fixture(starting, name="start")


class Clock:
    """What schedulers take for the time."""

    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Return the time, which goes on as a test says."""
    made = Clock()
    for module in (keeping, fetching):
        monkeypatch.setattr(module, "time", made)
    return made


def test_what_nobody_fetches_is_free_again_and_old_parameters_give_nothing(
    start, clock
):
    """Late decode computes itself: it reads nothing that is another's by now."""
    prefill, decode = start(keep_s=10, blocks=20), start()
    prefill.add("r", range(30), dict(DECODES))
    until(lambda: "r" in prefill.told, prefill.step)
    clock.now += 9
    for _ in range(20):
        prefill.step()
    assert "r" in prefill.requests
    clock.now += 2
    until(lambda: all_free(prefill), prefill.step)
    for n in range(3):
        prefill.add(f"other {n}", range(50, 70), {})
    until(lambda: all_free(prefill), prefill.step)
    assert prefill.stats.reduce()["expired"] == 1
    request = decode.add("at r", range(30), prefill.told["r"], 2)
    until(lambda: not decode.has_requests(), decode.step)
    assert (True, 0, STOPPED) == (request.failed, request.wrong, request.status)
    assert decode.stats.reduce()["failed"] == 1


def test_blocks_rest_as_long_as_decode_says_that_it_waits(start, clock):
    """Ten times as long as they would, while it has no room; and it gets them."""
    prefill, decode = start(keep_s=10), start(keep_s=10, blocks=9)
    prefill.add("r", range(20), dict(DECODES))
    until(lambda: "r" in prefill.told, prefill.step)
    decode.add("large", range(100, 128), {}, 4)
    decode.step()
    request = decode.add("at r", range(20), prefill.told["r"], 2)

    def go_on():
        prefill.step()
        decode.step()

    heard = []
    until_then, wanted = clock.now + 100, prefill.connector._keeping.wanted
    prefill.connector._keeping.wanted = lambda some: (heard.extend(some), wanted(some))
    large = decode.requests["large"]
    while clock.now < until_then:
        large.outputs = large.num_tokens  # it goes on, in the blocks that it has
        large.tokens, large.num_computed_tokens = large.tokens[:28], 27
        clock.now += 2
        count = len(heard)
        until(lambda n=count: len(heard) > n, go_on)
    assert (request.status, "r" in prefill.requests) == ("WAITING", True)
    decode.abort("large")
    until(lambda: request.is_over, go_on)
    assert (20, False, 0) == (request.came, request.failed, request.wrong)
    until(lambda: all_free(prefill), go_on)


def test_who_gives_a_request_up_says_so(start, clock):
    """Before it has any block, while it loads, or when it needs no load."""
    prefill, decode = start(), start()
    for name in ("before", "loading"):
        prefill.add(name, range(20), dict(DECODES))
        until(lambda name=name: name in prefill.told, prefill.step)
        decode.add(name, range(20), prefill.told[name], 2)
        if name == "loading":
            decode.step()
        decode.abort(name)
        until(lambda: all_free(prefill), prefill.step, decode.step)
        until(lambda: all_free(decode), decode.step)
    assert not (prefill.stats and prefill.stats.reduce()["expired"])  # no time went by


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


def test_decode_that_is_gone_leaves_blocks_that_expire(start, clock):
    """It never said that it was done."""
    prefill, decode = start(keep_s=10), start()
    prefill.add("r", range(20), dict(DECODES))
    until(lambda: "r" in prefill.told, prefill.step)
    decode.add("at r", range(20), prefill.told["r"], 2)
    decode.step()
    decode.close()
    prefill.step()
    clock.now += 11
    until(lambda: all_free(prefill), prefill.step)
    assert len(prefill.free[0]) == 63
