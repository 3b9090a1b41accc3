"""vLLM's weight transfer by us: a backend of its factory.

    register()  # in each process of vLLM, as a plug-in; then
    vllm serve MODEL --weight-transfer-config '{"backend": "stretto"}'

As of vLLM's commit 02f250b0 (`vllm/distributed/weight_transfer/base.py`). Each worker
is a rank of a replica; the model's own tensors are written, which graphs hold, while
the server is paused (`serving.routes`). `StrettoWeights` is made when it is asked for.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.errors import CallError, MissingExtraError
from stretto.weights.serving.paused import PausedModel, required

__all__ = ["InitInfo", "UpdateInfo", "engine_class", "register"]

BACKEND = "stretto"
_BASE = "vllm.distributed.weight_transfer"


@dataclass
class InitInfo:
    """What `/init_weight_transfer_engine` is told."""

    name: str
    trainers: list[str]
    """Where the trainer's engines are: names on this host, or HOST:PORT."""
    replica: str
    epoch: str
    names: str = "vllm/llama"
    listen: str | None = None
    timeout_s: float = 60.0
    how: dict[str, Any] = field(default_factory=dict)
    """What the way of names needs beside what vLLM's configuration says."""


@dataclass
class UpdateInfo:
    """What `/update_weights` is told."""

    version: int


def __getattr__(name: str) -> Any:
    """Return the class, made when vLLM asks for it."""
    if name == "StrettoWeights":
        return engine_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register() -> None:
    """Tell vLLM's factory of it; MissingExtraError: there is no vLLM."""
    factory = _vllm("factory").WeightTransferEngineFactory
    factory.register_engine(BACKEND, __name__, "StrettoWeights")


def _vllm(module: str) -> Any:
    try:
        return importlib.import_module(f"{_BASE}.{module}")
    except ImportError as e:
        raise MissingExtraError(f"vLLM's weight transfer: {e}; install vllm") from e


def _names_of(config: Any) -> Mapping[str, Any]:
    """Return what a model's configuration says of its tensors."""
    hf = config.hf_config
    experts = getattr(hf, "num_local_experts", 0) or getattr(hf, "num_experts", 0)
    return {
        "kv_heads": int(getattr(hf, "num_key_value_heads", 0) or 0),
        "experts": int(experts or 0),
        "tied": bool(getattr(hf, "tie_word_embeddings", False)),
    }


@functools.cache
def engine_class() -> type:
    """Return the class that vLLM's factory makes."""
    base = _vllm("base")

    class StrettoWeights(base.WeightTransferEngine):  # type: ignore[misc, name-defined]
        """Takes versions as a rank of a replica."""

        init_info_cls = type("InitInfo", (InitInfo, base.WeightTransferInitInfo), {})
        update_info_cls = type(
            "UpdateInfo", (UpdateInfo, base.WeightTransferUpdateInfo), {}
        )
        supports_draft_weight_update = False
        paused: PausedModel | None = None
        asked = 0

        def init_transfer_engine(self, init_info: InitInfo) -> None:
            """Meet the trainer and the other workers."""
            parallel = self.parallel_config
            if parallel.pipeline_parallel_size > 1:
                raise CallError("stages of a pipeline: names of layers are not ours")
            of = int(parallel.tensor_parallel_size)
            rank = int(parallel.rank) % of
            how = {"rank": rank, "of": of, **_names_of(self.model_config)}
            self.paused = PausedModel(
                self.model.state_dict(), name=init_info.name, rank=rank, num_ranks=of,
                trainers=init_info.trainers, replica=init_info.replica,
                epoch=init_info.epoch, names=init_info.names,
                how={**how, **init_info.how}, listen=init_info.listen,
                timeout=init_info.timeout_s,
            )  # fmt: skip

        def start_weight_update(self) -> None:
            """Let a version be written."""
            required(self.paused).start()

        def receive_weights(self, update_info: UpdateInfo) -> None:
            """Wait for it."""
            self.asked = update_info.version
            required(self.paused).receive(self.asked)

        def finish_weight_update(self) -> None:
            """Go on with it, on all ranks."""
            required(self.paused).finish(self.asked)

        def shutdown(self) -> None:
            """End it."""
            if self.paused is not None:
                self.paused.close()

        @staticmethod
        def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
            """Refuse: trainers push to a source."""
            raise CallError("trainers push: stretto.weights.publish(...).push()")

    return StrettoWeights
