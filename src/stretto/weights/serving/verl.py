"""A checkpoint engine of verl's: whole tensors of a trainer, to all ranks of rollouts.

    checkpoint_engine:
      backend: stretto
      custom_backend_module: stretto.weights.serving.verl

As of verl's `verl/checkpoint_engine/base.py` in mid-2026. Importing this where verl is
installed registers it. The trainer's first rank sends; each rollout rank takes all of
it, and checks its sums, before it yields the first tensor.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import numpy as np

from stretto.errors import TransferError
from stretto.transfer import Engine
from stretto.weights import publish, subscribe
from stretto.weights.serving.paused import connected
from stretto.weights.tensors import owned

__all__ = ["StrettoCheckpointEngine", "register"]

BACKEND = "stretto"


class StrettoCheckpointEngine:
    """See the module; the same calls as verl's own engines have."""

    def __init__(
        self, bucket_size: int = 0, is_master: bool = False, *,
        listen: str | None = None, device: str = "", timeout: float = 300.0,
    ) -> None:  # fmt: skip
        self._listen, self._device, self._timeout = listen, device, timeout
        self._engine: Engine | None = None
        self._rank, self._steps = -1, 0
        self._master: Mapping[str, str] = {}
        self._rollouts = 1

    def prepare(self) -> dict[str, Any]:
        """Return where this rank is; nothing is allocated."""
        if self._engine is None:
            self._engine = Engine(f"verl-{secrets.token_hex(6)}", listen=self._listen)
        return dict(self._engine.metadata)

    @classmethod
    def build_topology(
        cls, trainer_world_size: int, rollout_world_size: int,
        metadata: list[dict[str, Any]],
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:  # fmt: skip
        """Return what each rank of the trainer and of rollouts is initialised with."""
        counts = trainer_world_size, rollout_world_size
        trainer, rollout = (
            {"rank": [*range(n)], "master": [metadata[0]] * n, "is_trainer": [t] * n,
             "rollouts": [rollout_world_size] * n}
            for n, t in zip(counts, (True, False), strict=True)
        )  # fmt: skip
        return trainer, rollout

    def init_process_group(
        self, rank: int, master: Mapping[str, str], is_trainer: bool, rollouts: int
    ) -> None:
        """Meet the trainer's first rank; steps are counted anew."""
        self._rank, self._steps, self._master = rank, 0, master
        self._rollouts = rollouts
        if not is_trainer:
            connected(self._here(), master, time.monotonic() + self._timeout)

    def finalize(self) -> None:
        """Keep what there is: engines outlive steps."""

    def close(self) -> None:
        """End it."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _here(self) -> Engine:
        if self._engine is None or self._rank < 0:
            raise TransferError("prepare() and init_process_group() come first")
        return self._engine

    def _next(self) -> str:
        self._steps += 1
        return f"verl-{self._steps}"

    async def send_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Send all that a generator yields; ranks but the first run it, too."""
        engine, name = self._here(), self._next()
        if self._rank:
            for _ in weights:  # it may be a collective
                pass
            return
        await asyncio.to_thread(self._send, engine, name, dict(weights))

    def _send(self, engine: Engine, name: str, tensors: Mapping[str, Any]) -> None:
        rows = [(o.name, o.held.shape, o.held.dtype) for o in owned(tensors)]
        text = np.frombuffer(json.dumps(rows).encode(), np.uint8)
        with publish(engine, name, tensors, epoch="verl") as source:
            told = engine.share(text, f"{name}/names", read_only=True)
            try:
                push = source.push(0, in_place=True)
                push.wait(self._timeout, at_least=self._rollouts)
                push.end()
            finally:
                engine.unshare(told)

    async def receive_weights(self) -> AsyncIterator[tuple[str, Any]]:
        """Yield all tensors of the next version, which is here and whole by then."""
        engine, name = self._here(), self._next()
        for one in (await asyncio.to_thread(self._receive, engine, name)).items():
            yield one

    def _receive(self, engine: Engine, name: str) -> dict[str, Any]:
        torch = importlib.import_module("torch")
        peer = connected(engine, self._master, time.monotonic() + self._timeout)
        region = peer.region(f"{name}/names").wait(self._timeout)
        text = np.zeros(region.nbytes, np.uint8)
        region.get(text, deadline=self._timeout).wait(self._timeout)
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        into = {
            one: torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            for one, shape, dtype in json.loads(text.tobytes())
        }
        replica = f"rollout-{self._rank}"
        with subscribe(engine, name, into=into, replica=replica, copies=1) as policy:
            policy.wait(timeout=self._timeout)
        return into


def register() -> None:
    """Tell verl's registry of it."""
    base = importlib.import_module("verl.checkpoint_engine.base")
    made = type(
        "StrettoCheckpointEngine", (StrettoCheckpointEngine, base.CheckpointEngine), {}
    )
    base.CheckpointEngineRegistry.register(BACKEND)(made)


if importlib.util.find_spec("verl") is not None:
    register()
