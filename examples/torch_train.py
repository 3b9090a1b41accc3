"""Train a small transformer with DDP or FSDP2 on the backend "stretto".

python examples/torch_train.py --how fsdp
torchrun --nproc-per-node 4 examples/torch_train.py --how ddp --backend nccl

The only line that names who communicates is `init_process_group`. Without torchrun it
starts two processes on the CPU.
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import stretto.torch  # noqa: F401  (registers the backend)

VOCABULARY, WIDTH, LENGTH, LAYERS = 64, 64, 16, 2


class Transformer(nn.Module):
    """Says which token comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of what follows each token."""
        mask = nn.Transformer.generate_square_subsequent_mask(
            tokens.shape[1], device=tokens.device
        )
        hidden = self.tokens(tokens) + self.places
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def divided(model: nn.Module, how: str) -> nn.Module:
    """Return the model as it is trained: copied (ddp), or each rank a part (fsdp)."""
    if how == "ddp":
        return DistributedDataParallel(model)
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def drawn(rank: int, step: int, device: object) -> Tensor:
    """Return sequences that count upwards by some step: there is something to learn."""
    gen = torch.Generator().manual_seed(1000 * step + rank)
    first = torch.randint(0, VOCABULARY, (8, 1), generator=gen)
    by = torch.randint(1, 4, (8, 1), generator=gen)
    return ((first + by * torch.arange(LENGTH + 1)) % VOCABULARY).to(device)


def work(rank: int, ranks: int, meet: str, args: argparse.Namespace) -> None:
    """Be a rank: train, and print the loss of all ranks."""
    device: object = "cpu"
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend, init_method=meet, rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = divided(Transformer().to(device), args.how)
    steps = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(args.steps):
        tokens = drawn(rank, step, device)
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        steps.zero_grad()
        loss.backward()
        steps.step()
        everybody = loss.detach().clone()
        dist.all_reduce(everybody, dist.ReduceOp.AVG)
        if rank == 0 and (step % 5 == 0 or step == args.steps - 1):
            print(f"{args.how}, step {step}: loss {everybody.item():.4f}")
    dist.destroy_process_group()


def main() -> None:
    """Run under torchrun, or start two ranks here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="ddp", choices=("ddp", "fsdp"))
    parser.add_argument("--backend", default="stretto", help="stretto, nccl or gloo")
    parser.add_argument("--steps", type=int, default=11)
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
