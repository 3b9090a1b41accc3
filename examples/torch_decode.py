"""Decode with a Llama-shaped model under tensor parallelism: NCCL or stretto, one flag.

python examples/torch_decode.py --backend stretto --fused
torchrun --nproc-per-node 2 examples/torch_decode.py --shape 8b --backend nccl

The model calls `dist.all_reduce` and knows nothing of who answers. `--fused` hands it
to `stretto.torch.fuse`, which makes one call of all_reduce, add and norm. Weights are
random; without torchrun it starts two processes on the CPU.
"""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import stretto.torch

SHAPES = {  # hidden, heads, heads of keys, inner, layers, size of a head
    "tiny": (64, 4, 2, 128, 2, 16),
    "8b": (4096, 32, 8, 14336, 32, 128),
    "70b": (8192, 64, 8, 28672, 80, 128),
}


class RowParallel(nn.Linear):
    """A matrix divided by columns: every rank has a part of the sum."""

    reduce_results = True  # what stretto.torch.fuse looks for, as in serving engines

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum over ranks."""
        y = super().forward(x)
        if self.reduce_results:
            dist.all_reduce(y)
        return y


class Attention(nn.Module):
    """This rank's heads, and the keys and values of what came before."""

    def __init__(
        self, shape: tuple[int, ...], ranks: int, batch: int, length: int
    ) -> None:
        super().__init__()
        hidden, heads, kv, _, _, size = shape
        self.heads, self.kv, self.size = heads // ranks, kv // ranks, size
        width = (self.heads + 2 * self.kv) * size
        self.qkv = nn.Linear(hidden, width, bias=False)
        self.o_proj = RowParallel(self.heads * size, hidden, bias=False)
        cache = torch.zeros(2, batch, self.kv, length, size)
        self.register_buffer("cache", cache)

    def forward(self, x: Tensor, at: int) -> Tensor:
        """Attend to all places up to `at`."""
        made = self.qkv(x).view(x.shape[0], -1, self.size)
        q, k, v = made.split([self.heads, self.kv, self.kv], 1)
        self.cache[0, :, :, at], self.cache[1, :, :, at] = k, v
        keys, values = self.cache[:, :, :, : at + 1]
        out = functional.scaled_dot_product_attention(
            q.unsqueeze(2), keys, values, enable_gqa=True
        )
        return self.o_proj(out.flatten(1))


class Layer(nn.Module):
    """Attention, then two matrices with a gate between them."""

    def __init__(
        self, shape: tuple[int, ...], ranks: int, batch: int, length: int
    ) -> None:
        super().__init__()
        hidden, inner = shape[0], shape[3] // ranks
        self.input_layernorm = nn.RMSNorm(hidden, eps=1e-5)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=1e-5)
        self.self_attn = Attention(shape, ranks, batch, length)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down_proj = RowParallel(inner, hidden, bias=False)

    def forward(self, hidden: Tensor, at: int) -> Tensor:
        """Return what the next layer begins with."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), at)
        gate, up = self.gate_up(self.post_attention_layernorm(hidden)).chunk(2, -1)
        return hidden + self.down_proj(functional.silu(gate) * up)


class Llama(nn.Module):
    """The layers and the last norm."""

    def __init__(
        self, shape: tuple[int, ...], ranks: int, batch: int, length: int
    ) -> None:
        super().__init__()
        layers = (Layer(shape, ranks, batch, length) for _ in range(shape[4]))
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(shape[0], eps=1e-5)

    def forward(self, hidden: Tensor, at: int) -> Tensor:
        """Return the last hidden state of one token of each sequence."""
        for layer in self.layers:
            hidden = layer(hidden, at)
        return self.norm(hidden)


@torch.no_grad()
def work(rank: int, ranks: int, meet: str, args: argparse.Namespace) -> None:
    """Be a rank: build its part, decode, and say how fast."""
    device = torch.device("cuda", rank) if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend, init_method=meet, rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    with torch.device(device):
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        torch.set_default_dtype(dtype)
        model = Llama(SHAPES[args.shape], ranks, args.batch, args.tokens + 1).eval()
        hidden = torch.ones(args.batch, SHAPES[args.shape][0])
    if args.fused:
        model = stretto.torch.fuse(model)
    model(hidden, 0)  # the first call of a kind chooses, proves and compiles
    began = time.perf_counter()
    for at in range(1, args.tokens + 1):
        out = model(hidden, at)
    last = out.float().square().mean().item()
    took = (time.perf_counter() - began) / args.tokens
    if rank == 0:
        kind = f"{args.backend}{', fused' if args.fused else ''}"
        print(f"{args.shape}, {kind}: {took * 1e3:.2f} ms a token")
        print(f"mean square of the last state: {last:.4f}")
        if args.fused:
            print(model.fusion)
    dist.destroy_process_group()


def main() -> None:
    """Run under torchrun, or start two ranks here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="stretto", help="stretto, nccl or gloo")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--shape", default="tiny", choices=SHAPES)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8)
    args = parser.parse_args()
    if "RANK" in os.environ:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        work(rank, ranks, "env://", args)
        return
    with tempfile.TemporaryDirectory() as folder:
        meet = f"file://{folder}/meet"
        torch.multiprocessing.spawn(work, (2, meet, args), nprocs=2)


if __name__ == "__main__":
    main()
