"""A serving engine that computes nothing: it calls a connector as vLLM 0.33 does.

The order of its calls is in tests/pure/transfer/vllm_calls.json, as vLLM's scheduler
and model runner made them; a test compares. What it stores for a token is a number that
token, place, layer, head and position in it give: so every value can be compared. A
block that is free is poisoned at once, and is the next that is given out.
"""

import itertools
import json
import os
import select
import sys
from collections import deque
from types import SimpleNamespace

from tests.host.transfer.serving_rank import (
    ABORTED,
    LOADING,
    RUNNING,
    STOPPED,
    WAITING,
    Rank,
    Request,
    recorded,
)

from stretto.errors import StrettoError
from stretto.transfer.connector import CacheGroup, EnginePlace, Scheduler

ONE_GROUP = (CacheGroup(block=4),)


def _say(what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def scenario(prefill, decode, calls):
    """Have requests done well, aborted before they begin, and lost; note the calls."""
    for made, name in ((prefill, "prefill"), (decode, "decode")):
        scheduler, workers = made.sides()
        recorded(calls, scheduler, f"{name}.scheduler")
        for worker in workers:
            recorded(calls, worker, f"{name}.worker")
    for here, there in itertools.product(decode.sides()[1], prefill.sides()[1]):
        peer = here.engine.connect(there.engine.name).wait(10)
        peer.region("kv").wait(10)  # so that loads end in the step that begins them
    prompt = {name: [ord(name) * 50 + n for n in range(40)] for name in "abcde"}
    for name, tokens in prompt.items():
        prefill.add(name, tokens, {"do_remote_decode": True})
    prefill.abort("e")
    prefill.step()
    calls.append("--")
    told = json.loads(json.dumps(prefill.told))
    told["d"]["token"] = told["c"]["token"][:-2] + "00"  # nobody has it
    for name in "abcd":
        decode.add(f"at {name}", prompt[name], told[name], 2)
    decode.abort("at c")
    for _ in range(5):
        decode.step()
        calls.append("--")
    for _ in range(3):
        prefill.step()
        calls.append("--")


class Instance:
    """Prefill or decode: a scheduler of vLLM's manner, and its workers."""

    def __init__(self, name, *, ranks=1, blocks=64, groups=ONE_GROUP, budget=64,
                 overlap=1, keep_s=300.0, deadline_s=60.0, far=False, cached=0,
                 by_layer=False):  # fmt: skip
        self.groups, self.budget, self.overlap = groups, budget, overlap
        self.ranks = [
            Rank(
                f"{name}-{r}", r, ranks, groups, blocks, deadline_s=deadline_s, far=far
            )
            for r in range(ranks)
        ]
        self.connector = Scheduler(groups=groups, keep_s=keep_s, by_layer=by_layer,
                                   name=name)  # fmt: skip
        met = {(0, r): one.worker.get_handshake_metadata()
               for r, one in enumerate(self.ranks)}  # fmt: skip
        if far:  # as if on another host: names reach nobody there
            met = {k: EnginePlace(name=p.name, address=p.address, host=f"x/{name}")
                   for k, p in met.items()}  # fmt: skip
        self.connector.set_xfer_handshake_metadata_pp_aware(met)
        self.free = [list(range(blocks - 1, 0, -1)) for _ in groups]  # 0: "none"
        self.cached = cached
        """Tokens of every prompt that a prefix cache has; none is loaded."""
        self.requests, self.waiting, self.running = {}, deque(), []
        self.finished, self.received, self.under_way = set(), set(), deque()
        self.stats = None
        self.told = {}
        self._left = {"sending": {}, "recving": {}}

    # Requests.

    def add(self, name, tokens, params=None, outputs=1):
        request = Request(name, tokens, params, outputs)
        self.requests[request.request_id] = request
        self.waiting.append(request)
        self.connector.on_new_request(request)
        return request

    def abort(self, *names):
        for name in names:
            request = self.requests.get(name)
            if request is None or request.is_over:
                continue
            rests = request.status == LOADING and name not in self.received
            self.received.discard(name)
            if request in self.running:
                self.running.remove(request)
            if request in self.waiting:
                self.waiting.remove(request)
            request.status = ABORTED
            self._end(request, rests=rests)

    def preempt(self):
        """Take the blocks of the request that came last."""
        request = self.running.pop()
        self._release(request)
        request.status, request.num_computed_tokens = WAITING, 0
        self.waiting.appendleft(request)

    def _end(self, request, *, rests=False):
        self._skip(request)
        delay, params = self.connector.request_finished_all_groups(
            request, tuple(request.blocks)
        )
        self.finished.add(request.request_id)
        self.told[request.request_id] = params
        if not (rests or delay):
            self._free(request)

    def _skip(self, request):
        """Free blocks that are out of the window, as vLLM does before it asks."""
        for n, (group, blocks) in enumerate(
            zip(self.groups, request.blocks, strict=False)  # it may have none
        ):
            gone = (request.num_computed_tokens - group.window + 1) // group.block
            for nth in range(gone if group.window else 0):
                if blocks[nth]:
                    for rank in self.ranks:
                        rank.poison(n, [blocks[nth]])
                    self.free[n].append(blocks[nth])
                    blocks[nth] = 0

    def _free(self, request):
        self._release(request)
        del self.requests[request.request_id]

    def _release(self, request):
        for n, blocks in enumerate(request.blocks):
            blocks = [block for block in blocks if block]
            for rank in self.ranks:
                rank.poison(n, blocks)
            self.free[n] += blocks  # the next that are given out
        request.blocks = []

    def _grow(self, request, tokens, nulls=0):
        """Give a request blocks for so many tokens, or none: those before are null."""
        lack = []
        for n, group in enumerate(self.groups):
            have = len(request.blocks[n]) if request.blocks else 0
            lack.append(-(-tokens // group.block) - have)
        if any(len(self.free[n]) < more for n, more in enumerate(lack)):
            return False
        request.blocks = request.blocks or [[] for _ in self.groups]
        for n, (group, more) in enumerate(zip(self.groups, lack, strict=True)):
            for _ in range(more):
                end = (len(request.blocks[n]) + 1) * group.block
                gone = group.window and end <= nulls - group.window + 1
                request.blocks[n].append(0 if gone else self.free[n].pop())
        return True

    # A step.

    def has_requests(self):
        return bool(self.requests or self.finished or self.under_way
                    or self.connector.has_pending_push_work())  # fmt: skip

    def step(self):
        """Schedule, run, and deal with what has come of an earlier step."""
        if not self.has_requests():
            return
        if not (
            self.requests or self.finished or self.connector.has_pending_push_work()
        ):
            self._update(*self.under_way.popleft())
            return
        step = self._schedule()
        self.under_way.append((step, [rank.run(step) for rank in self.ranks]))
        if len(self.under_way) >= self.overlap or not step.work:
            self._update(*self.under_way.popleft())

    def _schedule(self):
        budget, work, is_sync = self.budget, [], False
        for request in list(self.running):
            more = min(budget, request.num_tokens - request.num_computed_tokens)
            if more <= 0 or not self._grow(request, request.num_computed_tokens + more):
                continue
            work.append((request, request.num_computed_tokens, more))
            budget -= more
        for request in list(self.waiting):
            if request.status == LOADING:
                if request.request_id not in self.received:
                    continue
                self._loaded(request)
            if budget <= 0:
                break
            begun = request.num_computed_tokens
            more, waits = 0, False
            if not begun:
                begun = (
                    0 if request.failed else min(self.cached, request.num_tokens - 1)
                )
                more, waits = self.connector.get_num_new_matched_tokens(request, begun)
            if waits:  # vLLM asks what it need not clear
                self.connector.get_loaded_kv_cache_group_ids(request)
            count = 0 if waits else min(budget, request.num_tokens - begun - more)
            if not self._grow(request, begun + more + count, nulls=begun + more):
                break
            if begun and not request.num_computed_tokens:
                for rank in self.ranks:
                    for where in rank.layers():
                        rank.compute(request, 0, begun, where)
            self.connector.update_state_after_alloc(
                request, SimpleNamespace(get_block_ids=lambda r=request: r.blocks), more
            )
            request.came += more
            if waits:
                request.status, request.num_computed_tokens = LOADING, begun + more
                continue
            self.waiting.remove(request)
            self.running.append(request)
            is_sync = is_sync or more > 0
            request.status = RUNNING
            work.append((request, begun + more, count))
            budget -= count
        meta = self.connector.build_connector_meta(None)
        step = SimpleNamespace(
            meta=meta, is_sync=is_sync, finished=set(self.finished),
            work=[(r, start, start + n) for r, start, n in work],
        )  # fmt: skip
        self.finished.clear()
        for request, start, count in work:
            request.num_computed_tokens = start + count
        return step

    def _loaded(self, request):
        self.received.discard(request.request_id)
        if request.failed and not request.num_computed_tokens:
            self._release(request)
        elif request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1
        request.status = WAITING

    def _update(self, step, outputs):
        joined = self._joined(outputs)
        self._deal_with_failures(joined)
        for request, _, stop in step.work:
            if (
                request.is_over
                or request.status != RUNNING
                or stop < request.num_tokens
            ):
                continue
            request.tokens.append((request.tokens[-1] * 17 + 5) % 9973)
            if request.num_tokens - request.num_prompt_tokens >= request.outputs:
                request.status = STOPPED
                self.running.remove(request)
                self._end(request)
        self.connector.update_connector_output(joined)
        for name in joined.finished_recving:
            request = self.requests[name]
            if request.status == LOADING:
                self.received.add(name)
            else:
                assert request.is_over
                self._free(request)
        for name in joined.finished_sending:
            assert self.requests[name].is_over
            self._free(self.requests[name])
        self.connector.get_kv_connector_stats()
        assert not list(self.connector.take_events())

    def _deal_with_failures(self, joined):
        assert not (joined.invalid and len(self.groups) > 1)
        for request in self.waiting:
            if request.status != LOADING:
                continue
            if request.request_id in joined.failed:
                request.num_computed_tokens, request.failed = 0, True
            size = self.groups[0].block
            for nth, block in enumerate(request.blocks[0]):
                if block in joined.invalid and nth * size < request.num_computed_tokens:
                    request.num_computed_tokens, request.failed = nth * size, True

    def _joined(self, outputs):
        """Return what all workers say, as vLLM joins it."""
        said = {"sending": set(), "recving": set()}
        meta, invalid, failed = None, set(), set()
        for one in outputs:
            for what, left in self._left.items():
                for name in getattr(one, f"finished_{what}"):
                    left[name] = left.get(name, len(self.ranks)) - 1
                    if not left[name]:
                        del left[name]
                        said[what].add(name)
            invalid |= one.invalid
            failed |= one.failed
            more = one.kv_connector_worker_meta
            meta = (
                more if meta is None else meta if more is None else meta.aggregate(more)
            )
            if one.stats is not None:
                made = Scheduler.build_kv_connector_stats(one.stats.to_dict())
                self.stats = made if self.stats is None else self.stats.aggregate(made)
        return SimpleNamespace(
            finished_sending=said["sending"], finished_recving=said["recving"],
            kv_connector_worker_meta=meta, invalid=invalid, failed=failed,
        )  # fmt: skip

    def sides(self):
        return self.connector, [rank.worker for rank in self.ranks]

    def close(self):
        for rank in self.ranks:
            rank.worker.shutdown()


def main():
    """Prefill in a process of its own: lines of requests come, parameters go."""
    how = json.loads(sys.argv[2])
    groups = tuple(CacheGroup(**one) for one in how.pop("groups", [{"block": 4}]))
    made = Instance(sys.argv[1], groups=groups, **how)
    _say("ready")
    rest = b""
    while True:
        lines = []
        if select.select([0], [], [], 0.0005 if made.has_requests() else 0.05)[0]:
            got = os.read(0, 1 << 16)
            if not got:
                os._exit(0)
            *lines, rest = (rest + got).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "abort" in said:
                made.abort(said["abort"])
            elif "free" in said:
                answer = {"free": [len(some) for some in made.free],
                          "stats": made.stats and made.stats.to_dict(),
                          "requests": list(made.requests)}  # fmt: skip
                _say(answer)
            else:
                made.add(said["name"], said["tokens"], said["params"])
        try:
            made.step()
        except StrettoError as e:
            _say({"error": repr(e)})
            os._exit(1)
        for name, params in list(made.told.items()):
            _say({"name": name, "params": params})
            del made.told[name]


if __name__ == "__main__":
    main()
