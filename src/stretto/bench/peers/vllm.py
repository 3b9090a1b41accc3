"""vLLM's custom all_reduce, where vLLM is installed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from stretto.bench.peers._own import plain_memory
from stretto.bench.peers._torch import as_tensor, start_group
from stretto.bench.peers._torch_gpu import (
    FOR_GRAPHS,
    NO_MULTICAST,
    claim_gpu,
    start_nccl,
)
from stretto.bench.workload.cases import Case
from stretto.bench.workload.contender import Buffer, Contender, Prepared, Setup
from stretto.errors import CallError, MissingExtraError

__all__ = ["DEVICES", "Vllm", "environment", "open_peer"]

DEVICES = ("cuda",)
_LARGEST = 16 << 20
_MODULE = "vllm.distributed.device_communicators.custom_all_reduce"


def environment() -> dict[str, str]:
    """Return what must be set before it starts."""
    return NO_MULTICAST | FOR_GRAPHS


def open_peer(setup: Setup) -> Contender:
    """Return it on all ranks (collective)."""
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtraError("no vllm: pip install vllm")
    torch = claim_gpu(setup)
    start_nccl(setup, "vllm")
    group = start_group(setup, "gloo", "vllm")
    theirs = importlib.import_module(_MODULE)
    device = torch.device("cuda", torch.cuda.current_device())
    custom = theirs.CustomAllreduce(group=group, device=device, max_size=_LARGEST)
    if hasattr(custom, "finalize_p2p"):
        custom.finalize_p2p()
    if custom.disabled:
        raise CallError("vllm has switched its all_reduce off for these GPUs")
    return plain_memory(torch, Vllm(torch, custom), setup)


class Vllm:
    """Its communicator; inputs of a graph are registered after its capture."""

    def __init__(self, torch: Any, custom: Any) -> None:
        self._torch, self._custom = torch, custom

    def prepare(self, case: Case, x: Buffer, out: Buffer) -> Prepared:
        """Bind an all_reduce."""
        given, target = (as_tensor(b, case.dtype) for b in (x, out))
        if case.collective != "all_reduce" or case.op != "sum":
            raise CallError("vllm sums in all_reduce")
        if case.dtype not in ("bfloat16", "float16", "float32"):
            raise CallError(f"vllm's all_reduce has no {case.dtype}")
        if not self._custom.should_custom_ar(given):
            raise CallError("vllm's all_reduce takes whole cells of 16 bytes, to 16 MB")
        if x is out:
            raise CallError("vllm's all_reduce is not in place")
        torch, custom = self._torch, self._custom

        def call() -> None:
            capturing = torch.cuda.is_current_stream_capturing()
            custom.all_reduce(given, out=target, registered=capturing)

        return Prepared(
            call=call,
            x=x,
            out=out,
            note="eager calls copy their input",
            settle=torch.cuda.synchronize,
            captured=custom.register_graph_buffers,
        )

    def close(self) -> None:
        """Give its memory back."""
        self._custom.close()
