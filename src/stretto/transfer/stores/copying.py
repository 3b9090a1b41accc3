"""Copies between memory of this process and a piece's buffer: on the CPU or a GPU."""

from __future__ import annotations

from typing import Any

from stretto.errors import StaleMemory
from stretto.transfer.copying.words import Mode, Status
from stretto.transfer.copying.work import Work
from stretto.transfer.plans import Plan
from stretto.transfer.stores.moving import Copier
from stretto.transfer.stores.pieces import Task

__all__ = ["copier_of"]


def copier_of(gpu: Any, stream: Any) -> Copier:
    """Return what copies between a buffer and memory: of the CPU, or of a GPU."""
    return _by_cpu


def _by_cpu(made: Plan, task: Task, at: int, is_put: bool) -> None:
    """Copy a task's runs; `at` is where the piece would begin in the buffer."""
    src, dst = ([0], [at]) if is_put else ([at], [0])
    for extent in task.extents:
        run = extent.run(is_put=is_put)
        status = Work(made, run, src, dst, mode=Mode.COPY).run()
        if status is not Status.DONE:
            raise StaleMemory(f"the copy ended as {status.name}")
