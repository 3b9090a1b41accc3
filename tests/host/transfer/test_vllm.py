"""The connector under vLLM's own scheduler, factory, hooks and base class.

It runs where vLLM 0.33 or newer can be imported; the order in which that calls is in
tests/pure/transfer/vllm_calls.json, which the stand-in of serving.py is held to
everywhere.
"""

import importlib
import json
import random
import time
from pathlib import Path

import pytest
from tests.host.transfer import serving

from stretto.transfer.connector import vllm as ours

try:
    importlib.import_module("vllm.v1.core.sched.scheduler")
except ImportError as e:
    pytest.skip(
        f"vLLM's scheduler cannot be imported here ({e}); its order of calls is tested "
        "by test_connector_order.py, with a stand-in",
        allow_module_level=True,
    )

from tests.host.transfer.vllm_instance import RealInstance

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]
CALLS = Path(__file__).parents[2] / "pure" / "transfer" / "vllm_calls.json"


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Yield what starts an instance, and end all of them."""
    monkeypatch.setattr(ours, "_ranks", lambda: (0, 0))
    some = []

    def make(role, name, **how):
        some.append(RealInstance(tmp_path, f"kv_{role}", name, **how))
        return some[-1]

    yield make
    for made in some:
        made.close()


def test_its_calls_are_those_that_were_recorded(start):
    """Method by method, step by step."""
    calls = []
    serving.scenario(start("producer", "p"), start("consumer", "d"), calls)
    calls = [call for call in calls if not call.endswith("has_pending_push_work")]
    assert json.loads(CALLS.read_text())["calls"] == calls


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("blocks", [64, 24])
def test_every_value_is_right_while_blocks_are_reused(start, hybrid, blocks):
    """Of sixty requests; what is free is poisoned; a fifth is aborted."""
    rng = random.Random(hybrid * 2 + blocks)
    prefill = start("producer", "p", hybrid=hybrid, blocks=blocks)
    decode = start("consumer", "d", hybrid=hybrid, blocks=blocks)
    prompts = {
        f"r{n}": [rng.randrange(9000) for _ in range(rng.randrange(1, 120))]
        for n in range(60)
    }
    for name, tokens in prompts.items():
        prefill.add(name, tokens, {"do_remote_decode": True})
    aborted, until = set(), time.monotonic() + 60
    while prefill.has_requests() or decode.has_requests():
        assert time.monotonic() < until
        prefill.step()
        decode.step()
        for name, params in list(prefill.told.items()):
            del prefill.told[name]
            decode.add(f"at {name}", prompts[name], json.loads(json.dumps(params)), 3)
            if rng.random() < 0.2:
                aborted.add(name)
                decode.abort(f"at {name}")
    assert (0, 0) == (prefill.wrong, decode.wrong)
    assert {f"at {name}" for name in prompts if name not in aborted} == set(decode.told)
    assert not prefill.scheduler.requests
    assert not decode.scheduler.requests
