"""Programs that were written for torchft: its `Manager`, on stretto's steps.

    manager = Manager(state)
    manager.start_quorum()
    loss.backward()               # with DDP; or manager.allreduce(gradient) for each
    if manager.should_commit():
        optimizer.step()

One quorum is all ranks; there is no lighthouse, and no time-out to nest in another.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from stretto.torch.elastic.state import State
from stretto.torch.elastic.steps import Steps
from stretto.torch.elastic.world import world


class Manager:
    """What a training loop asks of torchft's manager."""

    def __init__(self, state: State) -> None:
        """Take over a state; its loader is the program's own."""
        self._state, self._world = state, world()
        self._steps = Steps(state, self._world, 1, 0, 0)

    def start_quorum(self, *args: Any, **options: Any) -> None:
        """Begin a step; one that stands by waits until it is a rank."""
        self._steps.begin_alone()

    def wait_quorum(self) -> None:
        """Return: the ranks are there."""

    def allreduce(self, tensor: Any, **options: Any) -> Any:
        """Start to average a tensor over all ranks; after a fault it stays as it is."""
        return dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True)

    def should_commit(self, *args: Any, **options: Any) -> bool:
        """Return whether to step: on all ranks alike.

        False where the step is to be done again, and where it has been done already: by
        a rank that others were ahead of.
        """
        return self._steps.commit_alone()

    def errored(self) -> BaseException | None:
        """Return what has broken this step, if something has."""
        return self._world.fault

    def current_step(self) -> int:
        """Return how many steps were committed."""
        return self._state.step

    def num_participants(self) -> int:
        """Return how many ranks there are."""
        return self._state.num_ranks

    def participating_rank(self) -> int:
        """Return this process's rank."""
        return self._state.rank

    def is_participating(self) -> bool:
        """Return whether this process is a rank."""
        return not self._world.stands_by
