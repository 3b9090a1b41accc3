"""Experts by Gloo's own collectives: what programs do where nobody dispatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["GlooExperts"]


class GlooExperts:
    """Two ways: rows sorted and sent, or everything gathered."""

    def __init__(self, path: str, rank: int, num_ranks: int) -> None:
        """Meet the other ranks, by a file."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{path}", rank=rank, world_size=num_ranks
        )
        self._torch, self._dist = torch, dist
        self._rank, self._n = rank, num_ranks

    def close(self) -> None:
        """Leave the group."""
        self._dist.destroy_process_group()

    def steps(
        self, x: Any, ids: Any, weights: Any, experts: int
    ) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]]:
        """Return dispatch, combine and what that is to give, by name."""
        want = x * weights.sum(1, keepdims=True)
        given = [self._torch.from_numpy(one) for one in (x, ids, weights)]
        tokens, chosen, per = given
        return {
            "Gloo sorted": (
                lambda: self._sort_and_send(tokens, chosen, experts),
                lambda sent: self._send_back(sent, per).numpy(),
                want,
            ),
            "Gloo gathered": (
                lambda: self._gather(tokens, chosen, per, experts),
                lambda sent: self._scatter_sums(sent, len(tokens)).numpy(),
                want,
            ),
        }

    def _sort_and_send(self, tokens: Any, ids: Any, experts: int) -> Any:
        """Return this rank's rows by expert, and what takes them back."""
        torch, dist = self._torch, self._dist
        every = ids.view(-1)
        order = every.argsort(stable=True)
        rows = tokens[order // ids.shape[1]]
        per = torch.bincount(every, minlength=experts)
        theirs = torch.empty_like(per)
        dist.all_to_all_single(theirs, per)
        gives = per.view(self._n, -1).sum(1).tolist()
        gets = theirs.view(self._n, -1).sum(1).tolist()
        made = tokens.new_empty(sum(gets), tokens.shape[1])
        dist.all_to_all_single(made, rows, gets, gives)
        each = torch.arange(experts // self._n).repeat(self._n)
        where = each.repeat_interleave(theirs).argsort(stable=True)
        return made[where], where, order, gives, gets

    def _send_back(self, sent: Any, weights: Any) -> Any:
        """Return each token's weighed sum."""
        rows, where, order, gives, gets = sent
        came = rows.new_empty(rows.shape)
        came[where] = rows
        back = rows.new_empty(sum(gives), rows.shape[1])
        self._dist.all_to_all_single(back, came, gives, gets)
        out = rows.new_zeros(weights.shape[0], rows.shape[1])
        scaled = back * weights.view(-1)[order][:, None]
        return out.index_add_(0, order // weights.shape[1], scaled)

    def _gather(self, tokens: Any, ids: Any, weights: Any, experts: int) -> Any:
        """Return everybody's tokens, and the weights that are this rank's experts'."""
        whole = [
            one.new_empty((self._n * len(one), *one.shape[1:]))
            for one in (tokens, ids, weights)
        ]
        gather = _named(self._dist, "all_gather_single", "all_gather_into_tensor")
        for out, one in zip(whole, (tokens, ids, weights), strict=True):
            gather(out, one)
        mine = whole[1] // (experts // self._n) == self._rank
        return whole[0], whole[2] * mine

    def _scatter_sums(self, sent: Any, tokens: int) -> Any:
        """Return this rank's tokens of everybody's sums."""
        rows, weights = sent
        out = rows.new_empty(tokens, rows.shape[1])
        reduce = _named(self._dist, "reduce_scatter_single", "reduce_scatter_tensor")
        reduce(out, rows * weights.sum(1, keepdim=True))
        return out


def _named(module: Any, *names: str) -> Any:
    """Return what has the first of these names: PyTorch has changed them."""
    return next(getattr(module, name) for name in names if hasattr(module, name))
