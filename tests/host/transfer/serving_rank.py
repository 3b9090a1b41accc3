"""What a stand-in for a serving engine has beside its scheduler: requests, and ranks.

See serving.py.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from stretto.transfer import Engine
from stretto.transfer.connector import CacheGroup, Worker

_ASKED = Path(__file__).parents[2] / "pure" / "transfer" / "vllm_connector.json"
METHODS = tuple(json.loads(_ASKED.read_text())["methods"])
LAYERS, HEADS, WIDTH = 2, 4, 3
POISON = -1.0
WAITING, LOADING, RUNNING = "WAITING", "WAITING_FOR_REMOTE_KVS", "RUNNING"
STOPPED, ABORTED = "FINISHED_STOPPED", "FINISHED_ABORTED"


def recorded(calls, side, prefix):
    """Note the calls of one half of a connector, by name, in their order."""

    def noting(name, method):
        def noted(*args, **how):
            calls.append(f"{prefix}.{name}")
            return method(*args, **how)

        return noted

    for name in METHODS:
        method = getattr(side, name, None)
        if method is not None:
            setattr(side, name, noting(name, method))


def values(tokens, start, layer, heads):
    """Return what a cache holds of tokens from a place on: heads, tokens, width."""
    place = np.arange(start, start + len(tokens))[None, :, None]
    token = np.asarray(tokens)[None, :, None]
    head = np.arange(*heads)[:, None, None]
    what = token * 31 + place * 7 + layer * 1009 + head * 211 + np.arange(WIDTH)
    return (what % 65521 + 1).astype(np.float32)


class Request:
    """What a scheduler knows of a request."""

    def __init__(self, name, tokens, params=None, outputs=1):
        self.request_id, self.tokens = name, list(tokens)
        self.num_prompt_tokens = len(self.tokens)
        self.kv_transfer_params, self.outputs = params, outputs
        self.status, self.num_computed_tokens = WAITING, 0
        self.blocks, self.failed, self.wrong = [], False, 0
        self.came = 0
        """Tokens that were not computed here."""

    @property
    def num_tokens(self):
        return len(self.tokens)

    @property
    def is_over(self):
        return self.status.startswith("FINISHED")


class Rank:
    """A worker of an instance, with its share of the heads."""

    def __init__(self, name, rank, ranks, groups, blocks, **how):
        listen = "127.0.0.1:0" if how.pop("far", False) else None
        self.engine = Engine(name, listen=listen, secret=b"s" * 32)
        self.heads = rank * HEADS // ranks, (rank + 1) * HEADS // ranks
        here = self.heads[1] - self.heads[0]
        self.caches, made = {}, []
        for n, group in enumerate(groups):
            names = tuple(f"g{n}.l{layer}" for layer in range(LAYERS))
            shape = (blocks, here, group.block, WIDTH)
            self.caches |= {name: np.full(shape, POISON, np.float32) for name in names}
            heads = f"{HEADS}[{self.heads[0]}:{self.heads[1]}]"
            size = f"T={group.block} C={WIDTH}"
            layout = f"L={LAYERS} | B={blocks} H={heads} {size} float32"
            made.append(CacheGroup(block=group.block, window=group.window, layers=names,
                              layout=layout))  # fmt: skip
        self.groups = made
        self.worker = Worker(self.engine, groups=made, **how)
        self.worker.register_kv_caches(self.caches)

    def poison(self, group, blocks):
        for name in self.groups[group].layers:
            self.caches[name][list(blocks)] = POISON

    def layers(self):
        for n, group in enumerate(self.groups):
            for layer, name in enumerate(group.layers):
                yield n, group, layer, name

    def look(self, request, start, where):
        """Return how many tokens before one are not what they should be, in a layer."""
        n, group, layer, name = where
        low = max(0, start - group.window + 1) if group.window else 0
        if low >= start:
            return 0
        at = np.arange(low, start)
        pages = np.asarray(request.blocks[n])[at // group.block]
        want = values(request.tokens[low:start], low, layer, self.heads)
        have = self.caches[name][pages, :, at % group.block].transpose(1, 0, 2)
        return int((have != want).any(axis=(0, 2)).sum())

    def compute(self, request, start, stop, where):
        """Store what a model would."""
        n, group, layer, name = where
        at = np.arange(start, stop)
        pages = np.asarray(request.blocks[n])[at // group.block]
        made = values(request.tokens[start:stop], start, layer, self.heads)
        self.caches[name][pages, :, at % group.block] = made.transpose(1, 0, 2)

    def run(self, step):
        """Do a step as vLLM's model runner does."""
        made = self.worker
        made.handle_preemptions(step.meta)
        made.bind_connector_metadata(step.meta)
        if step.is_sync:
            made.start_load_kv(None)
        for where in self.layers() if step.work else ():
            made.wait_for_layer_load(where[-1])
            for request, start, stop in step.work:
                request.wrong += self.look(request, start, where)
                self.compute(request, start, stop, where)
            made.save_kv_layer(where[-1], self.caches[where[-1]], None)
        made.finish_forward()
        if not step.is_sync:
            made.start_load_kv(None)
        made.wait_for_save()
        found = made.get_transfer_results(step.finished)
        found = SimpleNamespace(
            finished_sending=found.finished_sending, failed=found.failed_recving,
            finished_recving=found.finished_recving,
            invalid=made.get_block_ids_with_load_errors(),
            stats=made.get_kv_connector_stats(),
            events=made.get_kv_connector_kv_cache_events(),
            kv_connector_worker_meta=made.build_connector_worker_meta(),
        )  # fmt: skip
        made.clear_connector_metadata()
        return found
