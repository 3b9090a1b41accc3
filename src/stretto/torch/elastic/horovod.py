"""Programs that were written for Horovod Elastic: `commit`, `restore`, `sync`, `run`.

    state = TorchState(model=model, optimizer=optimizer, batch=0)

    @run
    def train(state):
        for state.batch in range(state.batch, 100):
            ...
            state.commit()

What breaks throws the program back to its last commit, as there. `elastic.steps` throws
nothing away.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from stretto.errors import CommunicationError, MembershipError
from stretto.torch.elastic.sharing import StateSharing
from stretto.torch.elastic.state import State
from stretto.torch.elastic.world import world


class _Fields:
    """The program's own values, as something that has a state."""

    def __init__(self, owner: TorchState, names: tuple[str, ...]) -> None:
        self._owner, self._names = owner, names

    def state_dict(self) -> dict[str, Any]:
        """Return them by name."""
        return {name: getattr(self._owner, name) for name in self._names}

    def load_state_dict(self, said: dict[str, Any]) -> None:
        """Take them."""
        for name, value in said.items():
            setattr(self._owner, name, value)


class TorchState:
    """A model, an optimizer, and values of the program's own, which are attributes."""

    def __init__(self, *, model: Any, optimizer: Any, **values: Any) -> None:
        """Keep what there is at the beginning."""
        for name, value in values.items():
            setattr(self, name, value)
        self.model, self.optimizer = model, optimizer
        extra = (_Fields(self, tuple(values)),)
        self._state = State(model=model, optimizer=optimizer, extra=extra, random=False)
        self._sharing: StateSharing | None = None
        self._kept: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        self.save()

    def save(self) -> None:
        """Keep a copy of all of it."""
        copies = {n: t.clone() for n, t in self._state.tensors().items()}
        self._kept = copies, self._state.values()

    def commit(self) -> None:
        """Keep a copy of all of it, to which a fault throws the program back."""
        self.save()
        self._state.step += 1

    def check_host_updates(self) -> None:
        """Return: others are told of at their next call."""

    def restore(self) -> None:
        """Be as at the last commit."""
        copies, values = self._kept
        layout = [[n, list(t.shape), str(t.dtype)] for n, t in copies.items()]
        self._state.conform(layout)
        with torch.no_grad():
            for name, tensor in self._state.tensors().items():
                tensor.copy_(copies[name])
        step = self._state.step
        self._state.restore(values)
        self._state.step = step

    def sync(self) -> None:
        """Have all ranks begin with one state, the first's (collective)."""
        if self._sharing is None:
            self._sharing = StateSharing(self._state, world())
        part = world()
        if part.stands_by:
            part.stand_by(lambda: part.standing.tell(ready=True))
            self._sharing.take_place()
        else:
            self._sharing.align()
        part.rejoin()
        self.save()

    def recover(self) -> None:
        """Go on with other ranks, from the last commit."""
        self.restore()
        assert self._sharing is not None, "it was synced"
        self._sharing.go_on_from_here()


def run(train: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of a state one that is begun again, with other ranks."""

    @functools.wraps(train)
    def elastic(state: TorchState, *args: Any, **options: Any) -> Any:
        state.sync()
        while True:
            try:
                return train(state, *args, **options)
            except MembershipError:
                raise
            except CommunicationError:
                state.recover()

    return elastic
