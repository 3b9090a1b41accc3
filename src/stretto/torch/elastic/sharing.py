"""How a state gets to who takes a place, and how all see that it is the same.

After a generation has begun its ranks say how far they are. Who is behind commits, or
undoes; who came takes tensors from one that has the same part of the model; then all
compare hashes. If somebody is lost meanwhile, all begin again with the next generation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from stretto.errors import (
    CommunicationError,
    CommunicatorBroken,
    MembershipError,
    TransferError,
)
from stretto.fabric.meeting.standing import Standing
from stretto.runtime.calls.changing import change
from stretto.runtime.calls.committing import StepReport, StepVerdict, judge
from stretto.runtime.calls.spares import READY, YIELDS, lost_of, unfit_of
from stretto.torch.elastic.copies import (
    FILE,
    LEAVER,
    Restoring,
    StateCopies,
    choose,
)
from stretto.torch.elastic.hashes import differences, hashes_of
from stretto.torch.elastic.moving import StateMover
from stretto.torch.elastic.state import State
from stretto.torch.elastic.world import ElasticWorld

_MOST_NAMED = 3
GIVES, TOOK = "gives", "took"
"""What one says that has left its place, of its state; and who has taken a state: of
which rank, at which step."""
_LEAVER_S = 60.0


class StateSharing:
    """One rank's side of what follows a change."""

    def __init__(self, state: State, part: ElasticWorld) -> None:
        """Have an engine ready, so that nobody waits for it later."""
        self._state, self._world = state, part
        self._mover = StateMover(
            part.standing.identity, part.job, part.listen, part.secret
        )
        self._times: dict[str, float] = {}
        self._copies = StateCopies(state, self._mover, part.standing.since)
        self.undone = self.is_thrown_back = False
        """Whether the step that broke is to be done again; or all from another one."""
        self.has_to_share = False
        """Whether the others wait for this rank's state, when its step has ended."""

    def end(self) -> None:
        """Give the engine back."""
        self._mover.close()

    # What others are told.

    def noticed(self) -> None:
        """A step has broken."""
        self._times = {"noticed": time.monotonic()}

    def _now(self, phase: str) -> None:
        if self._times:
            self._times[phase] = time.monotonic()

    def tell_step(self) -> None:
        """Tell those who look how far this rank is, and how long a change took."""
        standing, said = self._world.standing, {}
        if self._times:
            self._now("first step")
            self._times |= {k: v for k, v in self._world.times.items() if v}
            generation = standing.generation - standing.since
            said["recovery"] = {"generation": generation, "at": self._times}
            self._times = {}
        standing.tell(step=self._state.step, **said)

    @property
    def is_timed(self) -> bool:
        """Whether a change has just been made, whose first step others wait for."""
        return bool(self._times)

    # After a change.

    def settle(
        self, entered: bool, step: Callable[[], Any] | None, *, grows: bool = False
    ) -> Any:
        """Go on with other ranks, all of them at one step; return what `step` returns.

        It is called where another rank has committed the step that broke here. What
        follows in the loop is of that step, too: a schedule, say. So this rank then
        `has_to_share`, and is called again at the step's end.
        """
        part = self._world
        while True:
            try:
                if not self.has_to_share:
                    part.go_on(_follow if grows else _replace)
                    self._now("switched")
                    if self._judge(entered) is StepVerdict.COMMIT:
                        assert step is not None, "it has entered"
                        self.has_to_share = True
                        return step()
                    if not self._state.committed:
                        self._state.undo()
                        self.undone = True
                self.has_to_share = False
                self._share()
            except MembershipError:
                self._save()
                raise
            except CommunicationError:
                if part.standing.is_over:
                    self._save()
                    raise
                grows = False
                continue
            part.fault = None
            return None

    def align(self) -> None:
        """Have all ranks begin with the state of the first that is furthest."""
        said = self._exchange({"step": self._state.step})
        steps = [one.get("step", -1) for one in said]
        self._share(comes=self._me != steps.index(max(steps)))

    def go_on_from_here(self) -> None:
        """Go on with other ranks, each thrown back to where it last was whole."""
        while True:
            try:
                self._world.go_on(_replace)
                self.align()
                return
            except MembershipError:
                raise
            except CommunicationError:
                if self._world.standing.is_over:
                    raise

    def _judge(self, entered: bool) -> StepVerdict:
        """Say how far this rank is; return what becomes of the step that broke."""
        mine = StepReport(step=self._state.step, entered=entered)
        said = self._exchange(asdict(mine))
        found = judge(mine, [StepReport(**one) for one in said if one])
        if found is StepVerdict.STOP:
            raise MembershipError(
                f"rank {self._state.rank} is at step {mine.step} without whole "
                f"gradients, another one is further: nobody may go on from here"
            )
        return found

    def take_place(self) -> None:
        """Be a rank from now on, with the state of the one whose place it is."""
        part = self._world
        while True:
            try:
                part.take_place()
                comm = part.comm
                assert comm is not None, "it has taken a place"
                self._state.seat(comm.rank, comm.num_ranks)
                self._exchange({})
                self._share(comes=True)
                return
            except MembershipError:
                raise
            except CommunicationError:
                me, facts = part.standing.identity, part.standing.facts
                if part.standing.is_over or me in unfit_of(facts):
                    raise
                part.step_back()
                part.stand_by(lambda: None)

    def _share(self, *, comes: bool = False) -> None:
        """Give who came the state, and compare it with the others'."""
        state, copies = self._state, self._copies
        said: dict[str, Any] = {"comes": comes, "digest": state.digest()}
        said |= {"part": state.part, "step": state.step, **copies.told()}
        left = self._left_for(state.rank) if comes else {}
        said["leaver"] = left.get("values", {}).get("step")
        gives = self._exchange(said)
        self._check_alike(gives)
        if any(one["comes"] for one in gives):
            self._move(choose(gives), left, comes=comes)
        self._now("state")
        copies.is_wanted = True
        alike = state.tensors(with_buffers=False)
        hashes = self._exchange({"hashes": hashes_of(alike)})
        self._compare(gives, hashes)

    def _check_alike(self, gives: Sequence[Mapping[str, Any]]) -> None:
        digests = {one["digest"] for one in gives}
        if len(digests) > 1:
            raise MembershipError(
                f"ranks have different models, batches or orders of gradients: "
                f"{', '.join(sorted(digests))}; want one program for all"
            )

    def _move(self, plan: Restoring, left: Mapping[str, Any], *, comes: bool) -> None:
        """Have those who came take their states; where need be, all go back a way."""
        state, me, step = self._state, self._me, plan.step
        tag = f"state/{self._world.standing.generation}"
        offer: dict[str, Any] = {}
        try:
            for rank in [r for r, source in plan.sources.items() if source == me]:
                if step is None:
                    tensors, said = (
                        state.tensors(),
                        offer.get("of") or self._state.described(),
                    )
                else:
                    given = self._copies.to_give(rank, step)
                    tensors, said = given.tensors, given.said
                self._mover.offer(tensors, f"{tag}/{rank}")
                offer |= {"engine": self._mover.metadata, "of": said}
                offer[str(rank)] = said
            offer.pop("of", None)
            offered = self._exchange(offer)
            if comes:
                source = plan.sources[me]
                if source == FILE:
                    state.take(self._copies.at(step or 0))
                elif source == LEAVER:
                    self._take(left["engine"], left, left["tag"])
                else:
                    given = offered[source]
                    self._take(given["engine"], given[str(me)], f"{tag}/{me}")
                if step is not None:
                    self._copies.mine[step] = state.snapshot()
            elif step is not None:
                state.take(self._copies.at(step))
                state.optimizer.zero_grad(set_to_none=True)
                self.is_thrown_back = True
            self._exchange({"taken": comes})
            if comes:
                self._world.standing.tell(**{TOOK: [me, state.step]})
        finally:
            self._mover.withdraw()

    def _take(self, engine: Any, said: Mapping[str, Any], tag: str) -> None:
        """Take another's tensors and values."""
        state = self._state
        state.conform(said["layout"])
        try:
            self._mover.take(engine, state.tensors(), tag)
        except TransferError as e:
            raise self._world.give_up(f"cannot take a state: {e}") from e
        state.restore(said["values"])
        if odd := differences(hashes_of(state.tensors()), said["hashes"]):
            raise MembershipError(
                f"{odd[0]} and {len(odd) - 1} other tensors came otherwise than they "
                "were sent: nobody may go on from here"
            )

    def _left_for(self, rank: int) -> dict[str, Any]:
        """Return what one that has left this place still gives."""
        facts = self._world.standing.facts.values()
        found = [f[GIVES] for f in facts if f.get(GIVES, {}).get("rank") == rank]
        return dict(found[-1]) if found else {}

    def keep_copies(self) -> None:
        """Copy states to neighbours and to files, where that is due (collective)."""
        copies, part = self._copies, self._world
        copies.save()
        if copies.is_due:
            comm = part.comm
            assert comm is not None, "it is a rank"
            tag = f"copy/{part.standing.generation}/{self._state.step}"
            try:
                copies.copy(comm.hosts, self._exchange, tag)
            except TransferError as e:
                raise part.give_up(f"cannot take a copy: {e}") from e

    def _compare(
        self, gives: Sequence[Mapping[str, Any]], said: Sequence[Mapping[str, Any]]
    ) -> None:
        me = self._me
        mine = said[me]["hashes"]
        for rank, one in enumerate(said):
            if gives[rank]["part"] != gives[me]["part"]:
                continue
            odd = differences(mine, one["hashes"])
            if odd:
                raise MembershipError(
                    f"rank {rank} differs from rank {self._me} in "
                    f"{len(odd)} tensors, the first of them "
                    f"{', '.join(odd[:_MOST_NAMED])}: nobody may go on from here"
                )

    @property
    def _me(self) -> int:
        comm = self._world.comm
        assert comm is not None, "it is a rank"
        return comm.rank

    def _exchange(self, said: Mapping[str, Any]) -> list[Any]:
        return self._world.exchange(said)

    def _save(self) -> None:
        """Keep what there is, where nobody goes on."""
        if self._state.checkpoint:
            self._state.save(self._state.path)

    # Before this rank leaves.

    def hand_over(self) -> None:
        """Say that this rank writes nothing any more in this generation.

        Who comes takes its place's state from here: so stay until it has, if it can.
        """
        standing, state = self._world.standing, self._state
        tag = f"left/{standing.generation}"
        self._mover.offer(state.tensors(), tag)
        said = {"rank": state.rank, "tag": tag, "engine": self._mover.metadata}
        standing.tell(**{GIVES: {**said, **self._state.described()}})
        self._world.let_go()
        standing.tell(**{YIELDS: standing.generation, READY: False})
        mine = [state.rank, state.step]

        def is_taken() -> bool:
            return any(f.get(TOOK) == mine for f in standing.facts.values())

        def is_last() -> bool:  # the others were lost just now
            others = [i for i in standing.identities if i != standing.identity]
            return bool(others) and all(i in standing.gone for i in others)

        with suppress(CommunicationError):  # nobody may have come, or all be over
            standing.wait(lambda: is_taken() or is_last(), _LEAVER_S)
        if is_last() and not is_taken():
            self._save()
        standing.tell(**{GIVES: {}})
        self._mover.withdraw()
        self._copies.forget()


def _replace(comm: Any) -> None:
    comm.replace()


def _follow(comm: Any) -> None:
    """Take what has been proposed, unless somebody was lost meanwhile."""

    def choose(standing: Standing) -> None:
        if lost := lost_of(standing):
            who = ", ".join(sorted(i[:8] for i in lost))
            raise CommunicatorBroken(f"rank {comm.rank}: {who} cannot be a rank")

    change(comm, choose, comm.deadline_s)
