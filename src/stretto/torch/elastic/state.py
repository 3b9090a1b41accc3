"""What a training rank consists of: tensors, values, and where it is in its data.

Tensors are those of the model, buffers too, and of the optimizer; what is no tensor is
JSON. Random numbers are a function of a seed, the rank and the step: they belong to the
rank, and whoever takes its place draws the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from stretto.errors import CallError, MembershipError
from stretto.torch.elastic.batches import Batches
from stretto.torch.elastic.buffers import KeptBuffers
from stretto.torch.elastic.hashes import hashes_of
from stretto.torch.elastic.meshes import part_of, seat
from stretto.torch.elastic.moving import Snapshot
from stretto.torch.elastic.plain import packed, unpacked
from stretto.torch.elastic.seeds import Seeds


class State:
    """All that a rank's place consists of. Make it when everything else is made."""

    def __init__(
        self,
        *,
        model: Any,
        optimizer: Any,
        loader: Any = None,
        scheduler: Any = None,
        extra: Sequence[Any] = (),
        seed: int = 0,
        batch: int = 0,
        random: bool = True,
        copies: int = 0,
        every: int = 50,
        checkpoint: str | None = None,
        checkpoint_every: int = 0,
    ) -> None:
        """`model`: a module, or several; `loader`: what steps take their batches from.

        `extra` are other things with `state_dict` and `load_state_dict`. `batch`: the
        samples of a step, alike on all who join. `random=False` leaves generators
        alone.

        Before each of `every` steps a rank's state is copied to the memory of so many
        others (`copies`): from there comes what only a lost rank had. What is left when
        too few ranks are is saved under `checkpoint`, and each rank's state before each
        of `checkpoint_every` steps under that and the step; `{rank}` in it is the rank.
        """
        self.models = [model] if isinstance(model, torch.nn.Module) else list(model)
        self.optimizer, self.scheduler, self.extra = optimizer, scheduler, tuple(extra)
        self.loader, self.batch, self._seeds = loader, batch, Seeds(seed)
        self.checkpoint, self._random = checkpoint, random
        self.copies, self.every, self.checkpoint_every = copies, every, checkpoint_every
        self._check_wishes()
        self.step = self.epoch = self.number = 0
        """Steps that were committed; and which batch of which epoch is the next."""
        self.rank, self.num_ranks = 0, 1
        self.committed = False
        """Whether the last `optimizer.step()` counts: for what is logged or saved."""
        if not self.models or not all(
            isinstance(one, torch.nn.Module) for one in self.models
        ):
            raise CallError("State: model=...; want a torch.nn.Module, or several")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise CallError(
                f"State: optimizer={type(optimizer).__name__}; want one of torch.optim"
            )
        self._buffers = KeptBuffers(self.models)
        self._generators = [torch.default_generator]
        self.on_gpu = any(p.is_cuda for p in self._params)
        if self.on_gpu:
            where = self._params[0].device.index
            self._generators.append(torch.cuda.default_generators[where])
        self.values()  # what cannot be sent is refused now, and not after a loss

    def _check_wishes(self) -> None:
        for name in ("copies", "every", "checkpoint_every"):
            least, given = int(name == "every"), getattr(self, name)
            if type(given) is not int or given < least:
                raise CallError(
                    f"State: {name}={str(given)[:40]}; want a whole number, at least "
                    f"{least}"
                )
        if self.checkpoint_every and "{rank}" not in (self.checkpoint or ""):
            raise CallError(
                f"State: checkpoint={self.checkpoint!r}; want a path with {{rank}} in "
                "it, for checkpoint_every: each rank writes its own"
            )

    # What there is.

    @property
    def _params(self) -> list[Any]:
        return [p for g in self.optimizer.param_groups for p in g["params"]]

    @property
    def _stateful(self) -> list[Any]:
        """The scheduler and `extra`; one may be empty, and be there all the same."""
        return [one for one in (self.scheduler, *self.extra) if one is not None]

    @property
    def path(self) -> str:
        """Where this rank's checkpoints are."""
        return (self.checkpoint or "").replace("{rank}", str(self.rank))

    @property
    def part(self) -> str:
        """Which part of the model this rank has: ranks of one part are replicas."""
        return part_of(self.models)

    def seat(self, rank: int, num_ranks: int) -> None:
        """Be this rank of so many from now on."""
        if rank != self.rank:
            seat(self.models, rank)
        self.rank, self.num_ranks = rank, num_ranks

    def tensors(self, *, with_buffers: bool = True) -> dict[str, Any]:
        """Return every tensor that a place consists of, by name: this rank's parts.

        What forward passes leave in buffers is of each rank's own batches: replicas are
        alike but for those.
        """
        found: dict[str, Any] = {}
        for i, one in enumerate(self.models):
            named = [*one.named_parameters()]
            named += one.named_buffers() if with_buffers else ()
            found |= {f"model.{i}.{name}": local(t) for name, t in named}
        for i, p in enumerate(self._params):
            said = self.optimizer.state.get(p, {})
            for key, value in said.items():
                if isinstance(value, torch.Tensor):
                    found[f"optimizer.{i}.{key}"] = local(value)
        return found

    def values(self) -> dict[str, Any]:
        """Return all that is no tensor, for JSON."""
        groups = [
            {k: v for k, v in group.items() if k != "params"}
            for group in self.optimizer.param_groups
        ]
        held = [self.optimizer.state.get(p, {}) for p in self._params]
        plain = [
            {k: v for k, v in one.items() if not isinstance(v, torch.Tensor)}
            for one in held
        ]
        held = [one.state_dict() for one in self._stateful]
        more = [{k: v for k, v in one.items() if not callable(v)} for one in held]
        said = {"groups": groups, "plain": plain, "more": more}
        place = {"step": self.step, "epoch": self.epoch, "number": self.number}
        try:
            return {**place, "values": json.loads(json.dumps(packed(said)))}
        except (TypeError, ValueError, RecursionError) as e:
            raise CallError(
                f"State: what the optimizer, the scheduler or `extra` hold cannot be "
                f"sent: {e}; want numbers, texts, lists, dicts, and tensors in the "
                "state of the optimizer"
            ) from None

    def layout(self) -> list[list[Any]]:
        """Return name, shape and type of every tensor."""
        return [
            [name, list(t.shape), str(t.dtype)] for name, t in self.tensors().items()
        ]

    def digest(self) -> str:
        """Return what stands for the model's layout and the batch: alike on all."""
        kinds = [  # of whole tensors: parts may differ
            [name, list(t.shape), str(t.dtype)]
            for one in self.models
            for name, t in (*one.named_parameters(), *one.named_buffers())
        ]
        said = json.dumps([kinds, self.batch, self._buckets()])
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def _buckets(self) -> list[list[str]]:
        """Return which parameters DDP reduces together, in its order."""
        found = []
        for one in self.models:
            reducer = getattr(one, "reducer", None)
            if reducer is None:
                continue
            names = {id(p): name for name, p in one.named_parameters()}
            for bucket in reducer._get_zeros_like_grad_buckets():
                known = enumerate(bucket.parameters())
                found.append([names.get(id(p), str(i)) for i, p in known])
        return found

    # What is taken from another.

    def conform(self, layout: Iterable[Sequence[Any]]) -> None:
        """Have the very tensors that another has; `MembershipError`: they differ."""
        theirs = {name: (tuple(shape), kind) for name, shape, kind in layout}
        ours = {n: (tuple(t.shape), str(t.dtype)) for n, t in self.tensors().items()}
        for name, said in {**theirs, **ours}.items():
            if name.startswith("model.") and theirs.get(name) != ours.get(name):
                raise MembershipError(
                    f"{name} is {theirs.get(name, 'not there')} at the others, and "
                    f"{ours.get(name, 'not there')} here: want the same model"
                )
            if name.startswith("optimizer.") and theirs.get(name) != ours.get(name):
                self._conform(name, theirs.get(name))
            del said

    def _conform(self, name: str, want: tuple[tuple[int, ...], str] | None) -> None:
        """Make one tensor of the optimizer what another has, or be without it."""
        _, index, key = name.split(".", 2)
        p = self._params[int(index)]
        if want is None:
            self.optimizer.state[p].pop(key, None)
            return
        shape, kind = want
        dtype = getattr(torch, kind.removeprefix("torch."))
        device = "cpu" if shape == () else p.device  # as PyTorch has steps
        made = torch.zeros(shape, dtype=dtype, device=device)
        if shape and hasattr(p, "_local_tensor"):
            made = torch.zeros_like(p, dtype=dtype)
        self.optimizer.state[p][key] = made

    def restore(self, said: Mapping[str, Any]) -> None:
        """Take the values of another."""
        self.step, self.epoch = int(said["step"]), int(said["epoch"])
        self.number, values = int(said["number"]), unpacked(said["values"])
        groups = self.optimizer.param_groups
        if len(groups) != len(values["groups"]):
            raise MembershipError(
                f"the optimizer has {len(groups)} groups of parameters here, and "
                f"{len(values['groups'])} at the others: want as many"
            )
        for group, theirs in zip(groups, values["groups"], strict=True):
            group |= theirs
        for p, theirs in zip(self._params, values["plain"], strict=True):
            self._restore_plain(p, theirs)
        for one, theirs in zip(self._stateful, values["more"], strict=True):
            one.load_state_dict(theirs)

    def _restore_plain(self, p: Any, theirs: Mapping[str, Any]) -> None:
        """Have of one parameter's values, but for tensors, those of another alone."""
        ours = self.optimizer.state.get(p, {})
        kept = {k: v for k, v in ours.items() if isinstance(v, torch.Tensor)}
        self.optimizer.state.pop(p, None)
        if kept or theirs:
            self.optimizer.state[p] = {**kept, **theirs}

    # A step.

    def begin(self, nth: int = 0) -> None:
        """Begin with the nth batch of a step: draw its random numbers.

        Before the first, keep what forward passes change.
        """
        self.committed = False
        if self._random:
            self.reseed(self.step, nth)
        if not nth:
            self._buffers.keep()

    def undo(self) -> None:
        """Be as at the beginning of the step; its batch comes again."""
        self._buffers.put_back()
        self.optimizer.zero_grad(set_to_none=True)

    def reseed(self, step: int, nth: int) -> None:
        """Draw from now on what belongs to this rank and this batch of a step."""
        seed = self._seeds.of(self.rank, step, nth)
        for generator in self._generators:
            generator.manual_seed(seed)

    def batches(self, epochs: int, steps: int | None) -> Batches:
        """Return the batches from which steps are taken."""
        if self.loader is None and steps is None:
            raise CallError("steps: no loader and no number of steps; want one of them")
        return Batches(self.loader, epochs, steps)

    def described(self) -> dict[str, Any]:
        """Return what is sent of it beside its tensors, with the hash of each."""
        hashes = hashes_of(self.tensors())
        return {"layout": self.layout(), "values": self.values(), "hashes": hashes}

    def snapshot(self) -> Snapshot:
        """Return a copy of all of it."""
        return Snapshot.of(self.tensors(), self.described())

    def save(self, path: str) -> None:
        """Write all of it to a file, for `load`."""
        self.snapshot().write(path)

    def load(self, path: str) -> None:
        """Take what `save` has written."""
        self.take(Snapshot.read(path))

    def take(self, found: Snapshot) -> None:
        """Be as this rank, or another one, was at some step."""
        self.conform(found.said["layout"])
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(found.tensors[name])
        self.restore(found.said["values"])
        self.committed = False


def local(tensor: Any) -> Any:
    """Return a tensor's memory here: of a sharded one, this rank's part."""
    inner = getattr(tensor, "_local_tensor", tensor)
    return inner.detach()
