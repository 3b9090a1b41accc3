"""What a group's calls are made on where ranks may change: its communicator, or not.

While somebody stands by, and after a fault until the next step begins, calls are
answered by a sandbox: no program waits, or sees a shape that it does not expect. What
it computes then is never committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stretto.errors import CommunicationError
from stretto.runtime.calls import VERBS, Communicator
from stretto.torch.answered import Sandbox
from stretto.torch.untraced import untraced

_ALSO = ("barrier", "send_async", "recv_async", "check")


@untraced
class Shield:
    """Stands for one group's communicator."""

    def __init__(
        self,
        name: str,
        members: Sequence[int],
        rank: int,
        absorb: Callable[[BaseException], bool],
    ) -> None:
        """`absorb` is told of a fault; whether the call is to be answered all the same.

        `members` are ranks of the world, and `rank` is which of them this process is.
        """
        self.name, self.members = name, tuple(members)
        self.comm: Communicator | None = None
        """None: a sandbox answers, and there is no communicator yet."""
        self.is_alone = True
        """Whether the sandbox answers."""
        self.calls_by_place: dict[Any, Any] = {}
        self._absorb, self._deadline_s = absorb, 1e8
        self.sandbox = Sandbox(rank, len(self.members))
        for verb in (*VERBS, *_ALSO):
            if hasattr(Sandbox, verb):
                setattr(self, verb, self._shielded(verb))

    def _shielded(self, verb: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self.is_alone:
                return getattr(self.sandbox, verb)(*args, **options)
            try:
                return getattr(self.comm, verb)(*args, **options)
            except CommunicationError as e:
                if not self._absorb(e):
                    raise
                return getattr(self.sandbox, verb)(*args, **options)

        call.__name__ = verb
        return call

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        return self.sandbox.rank

    @property
    def num_ranks(self) -> int:
        """How many there are."""
        return self.sandbox.num_ranks

    @property
    def deadline_s(self) -> float:
        """How long a rank may keep the others waiting."""
        return self._deadline_s

    @deadline_s.setter
    def deadline_s(self, given: float) -> None:
        self._deadline_s = given
        if self.comm is not None:
            self.comm.deadline_s = given

    def seat(self, members: Sequence[int], rank: int) -> None:
        """Be this one of other members."""
        self.members = tuple(members)
        self.sandbox.rank, self.sandbox.num_ranks = rank, len(self.members)

    def repeated_in_place(self, *args: Any) -> None:
        """Have no call known by its place alone: ranks may change."""

    def close(self) -> None:
        """Close the communicator, if there is one."""
        if self.comm is not None:
            self.comm.close()

    def __getattr__(self, name: str) -> Any:
        """Return what only a communicator has."""
        comm = self.__dict__.get("comm")
        if comm is None:
            raise AttributeError(f"{name}: this process stands by, and is no rank yet")
        return getattr(comm, name)
