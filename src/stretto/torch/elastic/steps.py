"""Steps that all ranks commit, or none: whatever dies, whenever.

    for batch in elastic.steps(state):
        model(batch).loss.backward()
        optimizer.step()          # commits, where everybody's gradients are whole

A step ends in a flag: an all_reduce of 8 bytes that a rank enters only with all of its
gradients reduced. If any rank saw it end, all had entered it, so all hold whole
gradients. So after a fault those who are left say how far they are: if one has
committed the step, all commit it; else none has, and all do it again, with the same
batches and the same random numbers. Then who came takes the state, and hashes compare.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from stretto.errors import CommunicationError, MembershipError
from stretto.runtime.calls.committing import agreed_change, flag_of
from stretto.runtime.calls.spares import READY
from stretto.torch.elastic.policy import Planned
from stretto.torch.elastic.sharing import StateSharing
from stretto.torch.elastic.state import State
from stretto.torch.elastic.world import WHOLE, ElasticWorld, world

WARM = 2
"""Steps that a standby makes before it waits: in the second DDP has its last order."""
_TELL_S = 1.0
OUTSIDE, INSIDE, ENTERED, SHADOW = "outside", "inside", "entered", "shadow"
"""Where this rank is: between steps, in one, behind its flag's beginning; or in a step
that counts for nothing."""


def steps(
    state: State, *, epochs: int = 1, number: int | None = None, warm: int = WARM
) -> Iterator[Any]:
    """Yield batches; each step is committed once by all ranks, whoever comes and goes.

    `number`: how many steps an epoch has, where the loader does not end by itself. One
    that stands by makes `warm` steps that count for nothing, then waits until it is a
    rank. A batch whose step is undone is yielded again.
    """
    return Steps(state, world(), epochs, number, warm).run()


class Steps:
    """One rank's way through its steps."""

    def __init__(
        self,
        state: State,
        part: ElasticWorld,
        epochs: int,
        number: int | None,
        warm: int,
    ) -> None:
        """Take over the optimizer's `step`, and the scheduler's."""
        self.state, self.world, self._warm = state, part, warm
        self._batches = state.batches(epochs, number)
        self._policy = Planned(part)
        self._sharing = StateSharing(state, part)
        self._flag, self._mine = np.zeros(2, np.int32), np.zeros(2, np.int32)
        """The least of all ranks' flags, and this one's."""
        self._said = 0
        """Of which change this rank's flag says that it has heard."""
        self._where = OUTSIDE
        self._pending: list[tuple[int, int, Any]] = []
        """Batches since the last commit."""
        self._agreed = 0
        self._told_at = 0.0
        self._real = state.optimizer.step

        self._flag_again: Callable[[], bool] | None = None
        """The flag's call, once it has been made among these ranks."""
        commit: Any = functools.partial(self._commit)
        functools.update_wrapper(commit, self._real, assigned=())  # schedulers look
        state.optimizer.step = commit
        if state.scheduler is not None:
            state.scheduler.step = self._if_committed(state.scheduler.step)

    def run(self) -> Iterator[Any]:
        """Yield batches until all steps are done."""
        if self.world.stands_by:
            yield from self._warm_up()
            self._stand_by()
        else:
            self._seat()
            with suppress(CommunicationError):  # the first step finds it out, too
                self.world.note_places()
        while not ((yield from self._until_turned()) and self._finish()):
            pass
        self._sharing.end()

    def _is_thrown_back(self) -> bool:
        """Return whether all have gone back to an earlier step."""
        found, self._sharing.is_thrown_back = self._sharing.is_thrown_back, False
        if found:
            self._pending.clear()
            self._sharing.undone = False
        return found

    def _finish(self) -> bool:
        """Wait until all have made their last step: one may not know that it is made.

        Where one has left in order meanwhile, all had come so far. Return whether all
        is done: a loss may throw all back.
        """
        part, standing = self.world, self.world.standing
        self._where = OUTSIDE
        while True:
            who = standing.identities
            try:
                part.exchange({"steps": self.state.step})
                return True
            except CommunicationError:
                if standing.is_over or any(standing.gone.get(i) == "" for i in who):
                    return True
                self._recover(None)
                self._seat()
                part.rejoin()
                if self._is_thrown_back():
                    return False

    def _seat(self) -> None:
        comm = self.world.comm
        assert comm is not None, "it is a rank"
        self.state.seat(comm.rank, comm.num_ranks)
        self.world.standing.tell(**{WHOLE: True})

    def _begin_batches(self) -> Iterator[tuple[int, int, Any]]:
        state = self.state
        self._batches.seat(state.rank, state.num_ranks)
        return self._batches.begin(
            state.epoch, state.number, lambda epoch: state.reseed(-epoch - 2, 0)
        )

    def _until_turned(self) -> Generator[Any, None, bool]:
        """Yield batches; return whether it was the last, or one is to begin anew.

        As another rank, that is, among more, or from an earlier step. Batches are
        yielded again until they are committed, or the program wants another one before
        it commits. One function: each step goes through it.
        """
        state, part, sharing = self.state, self.world, self._sharing
        pending, copies = self._pending, state.copies or state.checkpoint_every
        for one in self._begin_batches():
            pending.append(one)
            nth, before = len(pending) - 1, state.step
            while nth < len(pending):
                state.begin(nth)
                self._where, part.absorbs = INSIDE, True
                if copies and not nth:
                    self._keep_copies()
                yield pending[nth][2]
                part.absorbs = False
                if part.fault is not None:  # or this rank has yet to share its state
                    self._recover(None)
                self._where = OUTSIDE
                part.rejoin()
                if state.step != before or sharing.is_thrown_back:
                    pending.clear()
                    break
                nth = 0 if sharing.undone else nth + 1
                sharing.undone = False
            turns = self._agreed or sharing.is_thrown_back
            if turns and (self._is_thrown_back() or self._change()):
                return False
        return True

    def _keep_copies(self) -> None:
        try:
            self._sharing.keep_copies()
        except CommunicationError as e:
            self.world.absorb(e)  # it ends the step

    # The commit.

    def _commit(self, *args: Any, **options: Any) -> Any:
        """Step, if all ranks' gradients are whole; stands for `optimizer.step`."""
        if self._where == INSIDE and not self.state.committed:
            if self.world.fault is None and self._enter():
                found = self._real(*args, **options)
                self._advance()
                return found
            return self._recover(functools.partial(self._step, *args, **options))
        if self._where != SHADOW:
            raise MembershipError(
                "optimizer.step() twice for one batch, or outside of elastic.steps: "
                "want it once, in the loop"
            )
        return self._real(*args, **options)

    def _enter(self) -> bool:
        """Enter the flag; return whether all have."""
        comm, attempt = self.world.comm, self._policy.attempt
        assert comm is not None, "it is a rank"
        if attempt != self._said:
            self._mine[:], self._said = flag_of(attempt), attempt
        try:
            if self.state.on_gpu:  # what was enqueued has ended, and well
                torch.cuda.synchronize()
                comm.check()
            self._where = ENTERED
            if self._flag_again is None or not self._flag_again():
                comm.all_reduce(self._mine, "min", out=self._flag)
                self._flag_again = comm.repeated_into(self._mine, self._flag, "min")
        except CommunicationError as e:
            self.world.absorb(e)
            return False
        self._agreed = agreed_change(self._flag.tolist())
        return True

    def _step(self, *args: Any, **options: Any) -> Any:
        found = self._real(*args, **options)
        self._advance()
        return found

    def _advance(self) -> None:
        state = self.state
        state.epoch, state.number, _ = self._pending[-1]
        state.number += 1
        state.step += 1
        state.committed = True
        self._where = INSIDE
        if not self._told_at:
            state.values()  # what only the first step has made is refused now
        now = time.monotonic()
        if now > self._told_at + _TELL_S or self._sharing.is_timed:
            self._told_at = now
            self._sharing.tell_step()

    def _if_committed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **options: Any) -> Any:
            if self._where in (OUTSIDE, SHADOW) or self.state.committed:
                return call(*args, **options)
            return None

        return guarded

    # Steps that the program counts itself.

    def begin_alone(self) -> None:
        """Begin a step outside of a loop of ours."""
        if self.world.stands_by:
            self._stand_by()
        elif not self._pending:
            self._seat()
        self.world.rejoin()
        self._pending = [(0, self.state.step, None)]
        self.state.begin()
        self._where, self.world.absorbs = INSIDE, True

    def commit_alone(self) -> bool:
        """Return whether the program is to step now: on all ranks alike."""
        part, before = self.world, self.state.step
        commits = part.fault is None and self._enter()
        part.absorbs = False
        if not commits:
            self._recover(functools.partial(self._step))
            if self._sharing.has_to_share:
                self._recover(None)
            self._sharing.undone = False
        if commits:
            self._advance()
        self._where = SHADOW  # what the program calls now is the optimizer's own
        part.rejoin()
        return commits and self.state.step == before + 1

    # Other ranks.

    def _recover(self, step: Callable[[], Any] | None) -> Any:
        """Go on with other ranks after a loss; commit the step that broke, or undo it.

        `step` commits it; its result is returned where it was called.
        """
        self._policy.give_up()
        self._agreed = 0
        entered = self._where == ENTERED
        if not self._sharing.has_to_share:
            self._sharing.noticed()
        self._order_gradients()
        found = self._sharing.settle(entered, step)
        if not self._sharing.has_to_share:
            self._policy.resume()
        return found

    def _order_gradients(self) -> None:
        """Have DDP reduce gradients in its last order, as all others do.

        By itself it takes that in its second forward pass, or (`static_graph`) in its
        third: one that stands by has made two.
        """
        for model in self.state.models:
            reducer = getattr(model, "reducer", None)
            if reducer is not None:
                reducer._rebuild_buckets()

    def _change(self) -> bool:
        """Change the ranks as was asked, after a step; return whether to begin anew."""
        attempt, self._agreed = self._agreed, 0
        part, standing = self.world, self.world.standing
        leaving = self._policy.goes
        if standing.identity in leaving:
            self._yield_place(stays=leaving[standing.identity])
            return True
        standing.wait(lambda: all(map(self._policy.is_away, leaving)), None)
        if all(map(self._policy.has_left, leaving)):
            standing.agree(attempt)
        else:  # one has died before it could: that is a loss
            self._policy.give_up()
        size = self.state.num_ranks
        self._sharing.settle(False, None, grows=not leaving)
        self._policy.resume()
        self._seat()
        part.rejoin()
        return self._is_thrown_back() or self.state.num_ranks != size

    def _yield_place(self, *, stays: bool) -> None:
        """Hand this rank's place over, and stand by; or end this process."""
        left = self.world.standing.generation
        self._sharing.hand_over()
        if not stays:
            self._sharing.end()
            self.world.close()
            sys.exit(0)
        self.world.step_back(left)
        self._stand_by()

    # Standing by.

    def _warm_up(self) -> Iterator[Any]:
        """Yield some batches, to compile, allocate and choose all that is needed."""
        state, part = self.state, self.world
        state.rank, state.num_ranks = part.seat  # as its models have it already
        self._where = SHADOW
        batches = self._begin_batches()
        for nth in range(self._warm):
            one = next(batches, None)
            if one is None:
                break
            state.begin(nth)
            yield one[2]
        self._order_gradients()
        state.committed = False
        state.optimizer.zero_grad(set_to_none=True)

    def _stand_by(self) -> None:
        """Wait until this process is a rank, and take its state."""
        part, standing = self.world, self.world.standing
        self._pending.clear()
        part.stand_by(
            lambda: standing.tell(**{READY: True}, digest=self.state.digest())
        )
        self._sharing.take_place()
        self._seat()
        self._where = OUTSIDE
        part.rejoin()
