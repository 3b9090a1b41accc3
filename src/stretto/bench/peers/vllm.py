"""vLLM's custom all_reduce, where vLLM is installed."""

from __future__ import annotations

import importlib
from typing import Any

from stretto.bench.contender import CallBuffer, Contender, PreparedCall, Setup
from stretto.bench.peers._gpu import GpuPeer, claim_gpu, plain_memory, start_nccl
from stretto.bench.peers._torch import as_tensor, start_group
from stretto.bench.workload.cases import CallCase
from stretto.errors import CallError

_LARGEST = 16 << 20
_MODULE = "vllm.distributed.device_communicators.custom_all_reduce"


class Vllm(GpuPeer):
    """Its communicator; inputs of a graph are registered after its capture."""

    NEEDS = ("vllm", "pip install vllm")

    @classmethod
    def open(cls, setup: Setup) -> Contender:
        """Return it on all ranks (collective)."""
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
        return plain_memory(torch, cls(torch, custom), setup)

    def __init__(self, torch: Any, custom: Any) -> None:
        self._torch, self._custom = torch, custom

    def prepare(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> PreparedCall:
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

        return PreparedCall(
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


OFFERS = (Vllm,)
