"""Where a rank is in its data: batches that can be begun anywhere, by any process.

A position is an epoch and a number of batches in it, and belongs to the rank. Sampler
and loader are the user's; what is skipped is not loaded where the loader says which
samples make a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.utils.data as data

from stretto.torch.elastic.seeds import Seeds


class Batches:
    """Yields (epoch, number, batch), from a position on."""

    def __init__(self, loader: Any, epochs: int, steps: int | None) -> None:
        """`loader`: what can be iterated again, or None: batches are numbers."""
        self._loader, self._epochs, self._steps = loader, epochs, steps
        self._own = {id(g): (g, g.initial_seed()) for g in _generators_of(loader)}
        """The loader's own generators, and with which seed each came."""

    def begin(
        self, epoch: int, number: int, reseed: Callable[[int], None]
    ) -> Iterator[tuple[int, int, Any]]:
        """Begin at a position; `reseed` is called before each epoch's order is made.

        A generator that is the loader's own begins each epoch by its seed and the
        epoch: whatever was drawn from it here before.
        """
        for now in range(epoch, self._epochs):
            first = number if now == epoch else 0
            reseed(now)
            for generator, seed in self._own.values():
                generator.manual_seed(Seeds(seed).of(0, now) if now else seed)
            for i, batch in enumerate(self._from(now, first), start=first):
                yield now, i, batch

    def _from(self, epoch: int, first: int) -> Iterator[Any]:
        loader, last = self._loader, self._steps
        if loader is None:
            assert last is not None, "it was checked"
            return iter(range(first, last))
        sampler = _sampler_of(loader)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        found: Iterable[Any] = loader
        if first:
            found = _later(loader, first)
        if last is not None:
            found = itertools.islice(found, max(0, last - first))
        return iter(found)

    def seat(self, rank: int, num_ranks: int) -> None:
        """Be this rank's, of so many: a sampler computes its share anew."""
        sampler = _sampler_of(self._loader)
        if isinstance(sampler, data.distributed.DistributedSampler):
            epoch = sampler.epoch
            data.distributed.DistributedSampler.__init__(
                sampler,
                sampler.dataset,
                num_replicas=num_ranks,
                rank=rank,
                shuffle=sampler.shuffle,
                seed=sampler.seed,
                drop_last=sampler.drop_last,
            )
            sampler.set_epoch(epoch)


def _sampler_of(loader: Any) -> Any:
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    special = isinstance(inner, data.distributed.DistributedSampler)
    return inner if special else sampler


def _generators_of(loader: Any) -> list[torch.Generator]:
    """Return what a loader and its samplers draw from, where it is theirs alone."""
    batches = getattr(loader, "batch_sampler", None)
    inner = getattr(batches, "sampler", None)
    parts = loader, getattr(loader, "sampler", None), batches, inner
    found = [getattr(part, "generator", None) for part in parts]
    own = (one for one in found if isinstance(one, torch.Generator))
    return [one for one in own if one is not torch.default_generator]


class _Skipped:
    """A batch sampler without its first batches, which nobody loads."""

    def __init__(self, batches: Any, first: int) -> None:
        self._batches, self._first = batches, first

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._batches), self._first, None)

    def __len__(self) -> int:
        return max(0, len(self._batches) - self._first)


def _later(loader: Any, first: int) -> Iterable[Any]:
    """Return a loader's batches but for the first ones."""
    exact = type(loader) is data.DataLoader and loader.batch_sampler is not None
    if not exact or isinstance(loader.dataset, data.IterableDataset):
        return itertools.islice(loader, first, None)
    found: Iterable[Any] = data.DataLoader(
        loader.dataset,
        batch_sampler=_Skipped(loader.batch_sampler, first),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
    )
    return found
