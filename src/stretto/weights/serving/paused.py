"""A rank of an engine that pauses by itself for a version, which is written in place.

A step of ours is open all the time but during an update, so nothing is written while
the engine decodes; all ranks begin the next one with the same version.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from stretto.errors import CallError, RendezvousError, TransferError, TransferTimeout
from stretto.transfer import Engine
from stretto.weights.names import Names
from stretto.weights.policy import Policy
from stretto.weights.version import Version

__all__ = ["PausedModel", "connected"]


def connected(engine: Engine, where: Any, until: float) -> Any:
    """Return a peer that may still have to be started."""
    while True:
        try:
            return engine.connect(where).wait(max(0.1, until - time.monotonic()))
        except RendezvousError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


class PausedModel:
    """See the module; the weights that are there count as version 0 of the epoch."""

    def __init__(
        self, tensors: Mapping[str, Any], *, name: str, trainers: Sequence[Any],
        replica: str, rank: int, num_ranks: int, epoch: str, names: Names = None,
        how: Mapping[str, Any] | None = None, listen: str | None = None,
        timeout: float = 60.0,
    ) -> None:  # fmt: skip
        until = time.monotonic() + timeout
        self._timeout, self._open = timeout, ExitStack()
        self.engine = Engine(f"{replica}-{rank}", listen=listen)
        try:
            for mate in range(rank):
                connected(self.engine, f"{replica}-{mate}", until)
            for trainer in trainers:
                connected(self.engine, trainer, until)
            self.policy = Policy(
                self.engine, name, dict(tensors), names=names, how=how or {},
                layouts=None, replica=replica, rank=rank, num_ranks=num_ranks, copies=1,
                memory=None, start=Version(epoch, 0), patience=5.0, deadline=timeout,
            )  # fmt: skip
            with self.policy.changed:
                self.policy.changed.wait_for(
                    lambda: len(self.policy.mates()) == num_ranks - 1,
                    max(0.0, until - time.monotonic()),
                )
                if (here := len(self.policy.mates()) + 1) < num_ranks:
                    raise TransferTimeout(
                        f"replica {replica!r}: {here} of {num_ranks} ranks have come "
                        f"within {timeout} s"
                    )
            self._begin()
        except BaseException:
            self.engine.close()
            raise

    @property
    def version(self) -> Version | None:
        """Return the version that is there, whole."""
        return self.policy.version

    def _begin(self) -> None:
        self.now = self._open.enter_context(self.policy.step(self._timeout))

    def start(self) -> None:
        """Let a version be written: the engine decodes nothing now."""
        self._open.close()

    def receive(self, version: int) -> None:
        """Wait until a version is here, whole on all ranks, or a later one."""
        self.policy.wait(version, self._timeout)

    def finish(self, version: int) -> None:
        """Let nothing be written any more; the engine goes on."""
        self._begin()
        if self.now.counter < version:
            self._open.close()
            raise TransferError(
                f"weights {self.policy.name!r}: version {self.now} is here, and not "
                f"{version}"
            )

    def close(self) -> None:
        """End it."""
        self._open.close()
        self.policy.close()
        self.engine.close()


def required(found: PausedModel | None) -> PausedModel:
    """Return what is there since the engine was initialised."""
    if found is None:
        raise CallError("no trainer is known yet: /init_weight_transfer_engine first")
    return found
