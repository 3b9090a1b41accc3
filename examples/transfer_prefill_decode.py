"""Prefill in one process, decode in another: the same tokens as in one process.

    python examples/transfer_prefill_decode.py

A small transformer in NumPy keeps its keys and values in pages, as serving engines do.
The prefill process computes a prompt and keeps its pages; this process fetches them,
layer by layer, into pages of another size and order, and goes on from there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from stretto.transfer import Engine, Layout, kv_layout
from stretto.transfer.connector import Scheduler, Worker

LAYERS, HEADS, DIM, VOCAB = 3, 4, 16, 97
WIDTH = HEADS * DIM
PROMPT = [11, 42, 7, 7, 93, 5, 60, 1, 33, 28, 90]
STEPS = 12


class Cache:
    """Keys and values in pages: `kv[layer]` is what the layout says."""

    def __init__(self, name: str, block: int, blocks: int) -> None:
        self.block = block
        self.layout: Layout = kv_layout(
            name, layers=LAYERS, blocks=blocks, block=block, heads=HEADS, dim=DIM,
            dtype="float32",
        )  # fmt: skip
        self.names = [axis.name for axis in self.layout.axes]
        self.tensors = [np.zeros(self.layout.shape, np.float32) for _ in range(LAYERS)]

    def view(self, layer: int) -> np.ndarray:
        """Return a layer with axes in one order, whatever memory's is."""
        order = [self.names.index(n) for n in ("KV", "B", "T", "H", "D")]
        return self.tensors[layer].transpose(order)

    def write(self, layer: int, blocks: list[int], at: int, k: Any, v: Any) -> None:
        """Store a token's keys and values."""
        place = blocks[at // self.block], at % self.block
        self.view(layer)[0][place], self.view(layer)[1][place] = k, v

    def read(self, layer: int, blocks: list[int], count: int) -> np.ndarray:
        """Return the keys and values of the first tokens."""
        return self.view(layer)[:, blocks].reshape(2, -1, HEADS, DIM)[:, :count]


class Model:
    """A transformer of three layers, with weights that everybody can compute."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)

        def weight(*shape: int) -> np.ndarray:
            made = rng.standard_normal(shape) / np.sqrt(shape[0])
            return made.astype(np.float32)

        self.embed = weight(VOCAB, WIDTH) * np.float32(np.sqrt(VOCAB))
        self.head = weight(WIDTH, VOCAB)
        self.layers = [
            (weight(WIDTH, 3 * WIDTH), weight(WIDTH, WIDTH), weight(WIDTH, WIDTH))
            for _ in range(LAYERS)
        ]

    def step(
        self, token: int, at: int, cache: Cache, blocks: list[int], ready: Any
    ) -> int:
        """Compute a token, return the next one; `ready(layer)` waits for a layer."""
        x = self.embed[token] + np.sin(np.arange(WIDTH, dtype=np.float32) * (at + 1))
        for layer, (qkv, out, mlp) in enumerate(self.layers):
            q, k, v = (x @ qkv).reshape(3, HEADS, DIM)
            ready(layer)
            cache.write(layer, blocks, at, k, v)
            keys, values = cache.read(layer, blocks, at + 1)
            score = np.einsum("hd,thd->ht", q, keys) / np.sqrt(DIM)
            score = np.exp(score - score.max(axis=1, keepdims=True))
            score /= score.sum(axis=1, keepdims=True)
            x = x + np.einsum("ht,thd->hd", score, values).reshape(-1) @ out
            x = x + np.tanh(x @ mlp)
            x = x / np.sqrt((x * x).mean() + 1e-6)
        return int(np.argmax(x @ self.head))

    def run(self, tokens: list[int], cache: Cache, blocks: list[int], first: int = 0,
            steps: int = 0, ready: Any = lambda layer: None) -> list[int]:  # fmt: skip
        """Compute tokens from a place on, then so many more; return what follows."""
        made = []
        for at, token in enumerate(tokens[first:], first):
            following = self.step(token, at, cache, blocks, ready)
        for at in range(len(tokens), len(tokens) + steps):
            made.append(following)
            following = self.step(following, at, cache, blocks, ready)
        return [*made, following]


def request(**params: Any) -> SimpleNamespace:
    """Return a request, as a serving engine's scheduler sees one."""
    return SimpleNamespace(
        request_id="story", num_tokens=len(PROMPT), kv_transfer_params=params
    )


def prefill() -> None:
    """Compute the prompt, and keep its pages until they have been fetched."""
    cache = Cache("vllm/flash", block=4, blocks=16)
    blocks = [9, 2, 14]
    with Engine("prefill") as engine:
        worker = Worker(engine)
        names = {f"layers.{n}": t for n, t in enumerate(cache.tensors)}
        worker.register_kv_caches(names, cache.layout)
        scheduler = Scheduler([engine.name], block=cache.block, role="prefill")
        asked = request(do_remote_decode=True)
        scheduler.update_state_after_alloc(asked, blocks, 0)
        worker.bind_connector_metadata(scheduler.build_connector_meta())
        Model().run(PROMPT, cache, blocks)
        _, params = scheduler.request_finished(asked, blocks)
        print(json.dumps(params), flush=True)
        sys.stdin.readline()  # until the other says that it has them
        sent: set[str] = set()
        until = time.monotonic() + 10
        while not sent and time.monotonic() < until:  # an engine asks in every step
            sent, _ = worker.get_finished({"story"})
            time.sleep(0.001)
        print(json.dumps(sorted(sent)), flush=True)


def decode() -> list[int]:
    """Fetch the prompt's pages from the other process, and go on."""
    child = subprocess.Popen(
        [sys.executable, __file__, "prefill"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    params = json.loads(child.stdout.readline())
    cache = Cache("vllm/flashinfer", block=8, blocks=16)
    blocks = [5, 0, 7]
    with Engine("decode") as engine:
        worker = Worker(engine)
        names = {f"layers.{n}": t for n, t in enumerate(cache.tensors)}
        worker.register_kv_caches(names, cache.layout)
        scheduler = Scheduler(
            [engine.name], block=cache.block, role="decode", by_layer=True
        )
        asked = request(**params)
        count, _ = scheduler.get_num_new_matched_tokens(asked, 0)
        scheduler.update_state_after_alloc(asked, blocks, count)
        worker.bind_connector_metadata(scheduler.build_connector_meta())
        worker.start_load_kv()
        # The last token is left to be computed: its result is the first new one.
        made = Model().run(
            PROMPT, cache, blocks, first=count, steps=STEPS,
            ready=lambda layer: worker.wait_for_layer_load(f"layers.{layer}"),
        )  # fmt: skip
        worker.get_finished()
        assert not worker.get_block_ids_with_load_errors()
        print("fetched", worker.get_kv_connector_stats().reduce())
        said = SimpleNamespace(
            kv_connector_worker_meta=worker.build_connector_worker_meta()
        )
        scheduler.update_connector_output(said)
        worker.bind_connector_metadata(scheduler.build_connector_meta())  # tells them
    child.stdin.write("done\n")
    child.stdin.flush()
    assert json.loads(child.stdout.readline()) == ["story"]
    child.wait(10)
    return made


def main() -> None:
    """Compare two processes with one."""
    if sys.argv[1:] == ["prefill"]:
        prefill()
        return
    alone = Cache("vllm/flash", block=4, blocks=16)
    want = Model().run(PROMPT, alone, [0, 1, 2, 3, 4, 5], steps=STEPS)
    got = decode()
    print("one process:  ", want)
    print("two processes:", got)
    assert want == got


if __name__ == "__main__":
    main()
