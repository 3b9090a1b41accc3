"""The connector answers all that vLLM asks, with the parameters that it passes."""

import importlib.util
import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import CallError, MissingExtraError
from stretto.transfer.connector import (
    CacheGroup,
    EnginePlace,
    Scheduler,
    Stats,
    Worker,
    vllm,
)
from stretto.transfer.connector.groups import paired
from stretto.transfer.connector.keeping import Keeping
from stretto.transfer.connector.steps import Told, block_ids_of
from stretto.transfer.memory.board import Board
from stretto.transfer.regions.leases import MOST_TOKENS, new_token, read_token

WANTED = json.loads((Path(__file__).parent / "vllm_connector.json").read_text())
SIDES = {"scheduler": Scheduler, "worker": Worker}
ONE_SIDE = {
    "scheduler": ("get_num_new_matched_tokens", "update_state_after_alloc",
                  "build_connector_meta", "request_finished", "take_events",
                  "request_finished_all_groups", "update_connector_output",
                  "get_loaded_kv_cache_group_ids", "has_pending_push_work",
                  "set_xfer_handshake_metadata_pp_aware"),
    "worker": ("bind_connector_metadata", "clear_connector_metadata",
               "has_connector_metadata", "register_kv_caches", "unregister_kv_caches",
               "handle_preemptions", "start_load_kv", "wait_for_layer_load",
               "save_kv_layer", "wait_for_save", "get_finished", "get_transfer_results",
               "get_block_ids_with_load_errors", "build_connector_worker_meta"),
}  # fmt: skip
EVERY = [
    (side, name, asked)
    for side, other in (("scheduler", "worker"), ("worker", "scheduler"))
    for name, asked in WANTED["methods"].items()
    if name not in ONE_SIDE[other]
]
SCRIPT = Path(__file__).parents[3] / "scripts" / "vllm_interface.py"


@pytest.mark.parametrize(("side", "name", "asked"), EVERY)
def test_every_method_takes_what_vllm_passes(side, name, asked):
    """By position and by name; what ours take beside that may be left out."""
    method = getattr(SIDES[side], name)
    given_ = list(inspect.signature(method).parameters.values())
    if given_ and given_[0].name == "self":
        given_ = given_[1:]
    plain = [p for p in given_ if p.kind is not inspect.Parameter.VAR_KEYWORD]
    named = [n for n in asked if n != "**"]
    assert named == [p.name for p in plain[: len(named)]]
    assert all(p.default is not inspect.Parameter.empty for p in plain[len(named) :])
    if "**" in asked:
        assert len(plain) < len(given_)


@pytest.mark.parametrize("side", SIDES)
def test_every_property_is_there(side):
    """Of both halves; `role` is vLLM's own, and the base class has it."""
    for name in WANTED["properties"]:
        assert name == "role" or hasattr(SIDES[side], name)


def _script():
    spec = importlib.util.spec_from_file_location("vllm_interface", SCRIPT)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_what_is_recorded_is_what_an_installed_vllm_has():
    """By the script that wrote it."""
    script = _script()
    folder = script.find()
    if folder is None:
        pytest.skip("vLLM is not installed: only what was recorded of it is compared")
    found = script.read(folder)
    assert WANTED["methods"] == found["methods"]
    assert WANTED["properties"] == found["properties"]


def test_the_script_reads_methods_and_properties(tmp_path):
    """Of the two classes, and nothing that is hidden."""
    script = _script()
    path = tmp_path / script.BASE
    path.parent.mkdir(parents=True)
    path.write_text(
        "class KVConnectorBase_V1:\n"
        "    @property\n    def role(self): ...\n"
        "    def _own(self): ...\n    def start(self, a, b=1, **how): ...\n"
        "class Other:\n    def no(self): ...\n"
    )
    found = script.read(tmp_path)
    assert found == {"methods": {"start": ["a", "b", "**"]}, "properties": ["role"]}


def test_without_vllm_its_class_says_what_lacks(monkeypatch):
    """Not at import, but when it is asked for."""
    vllm.connector_class.cache_clear()
    monkeypatch.setitem(sys.modules, vllm._BASE, None)
    with pytest.raises(MissingExtraError, match="install vllm"):
        vllm.StrettoConnector  # noqa: B018
    with pytest.raises(AttributeError, match="Other"):
        vllm.Other  # noqa: B018


def test_blocks_are_read_as_vllm_gives_them():
    """A list, a tuple of groups, or what has `get_block_ids`."""
    blocks = SimpleNamespace(get_block_ids=lambda: ([4, 2], [7]))
    assert ((4, 2),) == block_ids_of([4, 2])
    assert ((4, 2),) == block_ids_of(([4, 2],))
    assert ((4, 2), (7,)) == block_ids_of(blocks)
    assert ((),) == block_ids_of([])
    assert ((), (3,)) == block_ids_of(([], [3]))


def test_what_workers_tell_is_joined():
    """Requests that are wanted, and those that each has loaded."""
    one = Told(wanted=frozenset("a"), loaded=("x",))
    whole = one.aggregate(Told(wanted=frozenset("ab"), loaded=("x", "y")))
    assert Told(wanted=frozenset("ab"), loaded=("x", "x", "y")) == whole


def test_places_are_read_from_names_addresses_and_json():
    """As they were sent."""
    assert EnginePlace(name="p0") == EnginePlace.of("p0")
    assert EnginePlace(address="10.0.0.1:5") == EnginePlace.of("10.0.0.1:5")
    whole = EnginePlace(name="p0", address="10.0.0.1:5", host="h/1")
    sent = {"name": "p0", "address": "10.0.0.1:5", "host": "h/1"}
    assert whole == EnginePlace.of(sent) == EnginePlace.of(whole)


@given(st.data())
def test_blocks_of_both_sides_hold_the_same_tokens(data):
    """Whatever their sizes, the window, and what is here already."""
    here, there = (data.draw(st.sampled_from([2, 4, 6])) for _ in range(2))
    step = here * there
    start = step * data.draw(st.integers(0, 2))
    stop = start + data.draw(st.integers(1, 60))
    window = data.draw(st.sampled_from([0, 1, 5, 17]))
    gone = max(0, stop - window + 1) if window else 0  # tokens out of the window
    theirs, ours = (
        [0 if (n + 1) * size <= gone else base + n for n in range(-(-stop // size))]
        for size, base in ((there, 100), (here, 500))
    )
    pages = paired(
        CacheGroup(block=here, window=window), there, theirs, ours, start, stop
    )
    assert 0 not in pages.remote + pages.local
    first = stop - pages.tokens
    assert first >= start
    for nth in range(pages.tokens if pages.local else 0):
        token = first + nth
        assert pages.remote[nth // there] == theirs[token // there]
        assert pages.local[nth // here] == ours[token // here]
    if not window:
        assert (first, pages.lost) == (start, ())
    needed = range(max(start, gone), first) if window else ()
    assert {ours[token // here] for token in needed} - {0} == set(pages.lost)
    if here == there:
        assert not pages.lost  # what both have in the window, comes


def test_groups_that_are_none_are_refused():
    """Of no tokens, and from the midst of a block."""
    with pytest.raises(CallError, match="block=0"):
        CacheGroup(block=0)
    with pytest.raises(CallError, match="from token 2"):
        paired(CacheGroup(block=4), 4, [1], [1], 2, 4)


def test_more_requests_than_there_are_tokens_are_not_kept():
    """They are computed elsewhere; and tokens that are given back are used again."""
    keeping = Keeping(10.0)
    names = [f"r{n}" for n in range(MOST_TOKENS + 1)]
    for name in names:
        keeping.open(name)
    opened = keeping.take()["opened"]
    assert len(set(opened.values())) == MOST_TOKENS
    assert keeping.keep(names[0])
    assert not keeping.keep(names[-1])
    keeping.sent(names[:1])
    keeping.open(names[-1])
    assert keeping.take()["opened"][names[-1]] not in opened.values()


def test_a_token_opens_nothing_before_workers_know_of_it():
    """A request that ends in the step that gave it blocks is not kept."""
    keeping = Keeping(10.0)
    keeping.open("r")
    assert not keeping.keep("r")
    keeping.close("r")
    assert not keeping.take()["closed"]  # nobody had opened it


def test_tokens_are_never_alike():
    """Of one number, too: an old one opens nothing in an engine that is new."""
    assert len({new_token(3) for _ in range(1000)}) == 1000
    with pytest.raises(CallError, match="want 0 to"):
        new_token(MOST_TOKENS)


class _Metric:
    """Stands for those of Prometheus."""

    def __init__(self, made, kind, **how):
        self.seen = made.setdefault(how["name"], {})
        self.labelnames = how["labelnames"]
        assert ("buckets" in how) == (kind == "Histogram")
        assert how["documentation"]

    def labels(self, *values):
        assert len(values) == len(self.labelnames)
        seen = self.seen.setdefault(values, [])
        return SimpleNamespace(observe=seen.append, inc=seen.append)


def test_figures_reach_prometheus_by_engine():
    """Those of two workers, joined, as JSON carries them."""
    stats, other = Stats(), Stats()
    assert stats.is_empty()
    stats.moved("load", 100, 0.5)
    other.moved("load", 20, 0.25)
    other.count("expired")
    stats.aggregate(Scheduler.build_kv_connector_stats(other.to_dict()))
    want = {"loads": 2, "saves": 0, "bytes": 120, "seconds": 0.75, "failed": 0,
            "expired": 1, "late": 0}  # fmt: skip
    assert want == stats.reduce()
    made = {}
    kinds = {
        type(kind, (), {}): lambda kind=kind, **how: _Metric(made, kind, **how)
        for kind in ("Gauge", "Counter", "Histogram")
    }
    metrics = Scheduler.build_prom_metrics(None, kinds, ["model"], {0: ["m"], 1: ["n"]})
    metrics.observe(json.loads(json.dumps(stats.to_dict())), 1)
    assert made["vllm:stretto_kv_load_bytes"] == {("m",): [], ("n",): [100, 20]}
    assert made["vllm:stretto_kv_expired"] == {("m",): [], ("n",): [1]}
    assert made["vllm:stretto_kv_failed"] == {("m",): [], ("n",): []}


def test_figures_that_nobody_takes_do_not_grow_for_ever():
    """The last of them are kept."""
    stats = Stats()
    for n in range(10_000):
        stats.moved("save", n, 0.0)
    assert stats.data["save_bytes"][-1] == 9999
    assert len(stats.data["save_bytes"]) < 5000
    stats.reset()
    assert stats.is_empty()


def test_a_slot_is_one_lease_at_a_time():
    """Tokens that somebody made up open slots of their own, and only new ones."""
    board = Board()
    mine = board.begin()
    slot, epoch = read_token(new_token(0))
    assert board.begin((slot, epoch)) == (slot, epoch)
    assert board.is_now(slot, epoch)
    with pytest.raises(CallError, match="has not ended"):
        board.begin(read_token(new_token(0)))
    with pytest.raises(CallError, match="want a new one"):
        board.begin(mine)
    board.renew(slot)
    assert not board.is_now(slot, epoch)
    board.end(slot)
    assert board.begin(read_token(new_token(0)))[0] == slot
    assert board.begin()[0] not in (slot, mine[0])
