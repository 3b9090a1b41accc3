"""A layer of experts on two ranks: trained, and its gradients those of one rank.

Each rank has half of the experts. Tokens go to the experts that a router has chosen,
and come back as weighed sums; gradients go the other way by the same two operations.
Run it with `python examples/moe_layer.py`: two processes on this machine's CPUs.
"""

from __future__ import annotations

from typing import Any

import torch

import stretto

EXPERTS, CHOICES, HIDDEN, TOKENS, STEPS = 8, 2, 64, 96, 30


class Layer(torch.nn.Module):
    """A router, and this rank's experts."""

    def __init__(self, comm: stretto.Communicator) -> None:
        """Have the same router on all ranks, and experts of one's own."""
        super().__init__()
        torch.manual_seed(0)
        self.router = torch.nn.Linear(HIDDEN, EXPERTS)
        self.ep = comm.experts(EXPERTS, CHOICES, HIDDEN, TOKENS, dtype="float32")
        local = EXPERTS // comm.num_ranks
        torch.manual_seed(1 + comm.rank)
        self.weight = torch.nn.Parameter(torch.randn(local, HIDDEN, HIDDEN) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens' sums over their experts."""
        weights, ids = self.router(x).softmax(-1).topk(CHOICES)
        sent = self.ep.dispatch(x, ids, weights)
        ends = sent.starts.tolist()
        parts = [
            sent.rows[ends[e] : ends[e + 1]] @ self.weight[e]
            for e in range(len(self.weight))
        ]
        out: torch.Tensor = self.ep.combine(torch.cat(parts).tanh(), sent)
        return out


def work(comm: stretto.Communicator) -> tuple[float, float, list[int]]:
    """Train on one rank; return the first and last loss, and loads of its experts."""
    layer = Layer(comm)
    made = torch.Generator().manual_seed(comm.rank)
    x = torch.randn(TOKENS, HIDDEN, generator=made)
    aim = torch.sin(x.roll(1, 1))
    optimiser = torch.optim.Adam(layer.parameters(), 3e-3)
    losses = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = (layer(x) - aim).square().mean()
        loss.backward()
        for one in layer.router.parameters():  # experts are their rank's alone
            comm.all_reduce(one.grad, op="avg")
        optimiser.step()
        losses.append(loss.item())
    with torch.no_grad():
        weights, ids = layer.router(x).softmax(-1).topk(CHOICES)
        loads: list[int] = layer.ep.dispatch(x, ids, weights).counts_host()
    return losses[0], losses[-1], loads


def main() -> list[Any]:
    """Start two ranks and say what they found."""
    found = stretto.spawn(work, num_ranks=2)
    for rank, (first, last, loads) in enumerate(found):
        print(f"rank {rank}: loss {first:.3f} to {last:.3f}; rows by expert {loads}")
        assert last < 0.7 * first, "it learns"
    assert sum(sum(loads) for *_, loads in found) == TOKENS * CHOICES * 2
    return found


if __name__ == "__main__":
    main()
